"""How much XLA optimises machine code in tests."""

from importlib import metadata

import jax

LITTLE = "--xla_backend_optimization_level=0"
"""XLA reads it with the first computation; where its variable is set, that stays."""


def is_little(markexpr: str) -> bool:
    """Whether tests with these marks are compiled with `LITTLE`; else it is done as for users.

    Most programs of a test run once, and the rest of XLA's passes are the same. Slow tests and
    those in double precision have all of it, and so has what may run on a GPU: there, programs
    beside the kernels are to be those of users.
    """
    return "not slow" in markexpr and not jax.config.jax_enable_x64 and not may_use_a_gpu()


def may_use_a_gpu() -> bool:
    """Whether JAX looks for one: no backend may be made to find out."""
    chosen = jax.config.jax_platforms
    if chosen:
        return chosen != "cpu"
    return any("cuda" in plugin.name for plugin in metadata.entry_points(group="jax_plugins"))
