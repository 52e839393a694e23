"""What the layers of nnx and linen share; without Flax itself."""
