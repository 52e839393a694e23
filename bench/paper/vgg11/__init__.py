"""VGG-11, pruned: flops and seconds of every scan over its Jacobians (BPPSA 5.3)."""
