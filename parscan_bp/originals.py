"""The loops of JAX, as they were when this package was imported.

A program may put `parscan_bp.scan` in the place of `jax.lax.scan`, or `parscan_bp.while_loop` in
that of `jax.lax.while_loop`. The package's own scans are not to come back to the one, nor
`parscan_bp.while_loop` to itself, so they are made by these.
"""

from jax.lax import scan as lax_scan
from jax.lax import while_loop as lax_while_loop

__all__ = ["lax_scan", "lax_while_loop"]
