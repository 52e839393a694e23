"""Layers as one device of a mesh runs them."""
