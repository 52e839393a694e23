"""Process grids of Gholami et al. (2018): divided layers and what they cost."""
