"""What XLA on CPU wants, and nothing of it anywhere else."""
