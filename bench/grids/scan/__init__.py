"""`scan` against the tuned `jax.lax.scan` over cells and sizes."""
