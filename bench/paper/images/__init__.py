"""LeNet-5 and what VGG-11 shares with it: networks and images."""
