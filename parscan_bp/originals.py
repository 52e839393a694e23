"""The loop of JAX, as it was when this package was imported.

A program may put `parscan_bp.scan` in the place of `jax.lax.scan`. The package's own loops are not
to come back to it, so they are all made by this one.
"""

from jax.lax import scan as lax_scan

__all__ = ["lax_scan"]
