"""Recurrent layers of Flax and ours."""
