"""How far numbers of the library may be from those of NumPy in float64."""

import jax

TOLERANCE = 1e-12 if jax.config.jax_enable_x64 else 2e-5
"""For numbers of the size of one."""
