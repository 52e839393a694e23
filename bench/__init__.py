"""Measurements of parscan_bp against `jax.lax.scan`. `python -m bench` lists what can run."""
