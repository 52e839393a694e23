"""What the layers of nnx and linen share, without Flax itself; and their modules as blocks."""
