"""The forward pass in parallel against `jax.lax.scan`, over cells and systems."""
