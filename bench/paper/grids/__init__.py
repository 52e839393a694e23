"""The figures of Gholami et al. (2018): process grids for AlexNet."""
