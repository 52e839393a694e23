"""How much XLA optimises machine code in tests."""

from importlib import metadata

import jax

UNOPTIMISED: dict[str, int | bool] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options of a compilation; XLA ends a process that sets one that it does not know."""
if jax.__version_info__ < (0, 11):
    UNOPTIMISED["xla_cpu_use_fusion_emitters"] = False  # 2.1 s of compilation become 1.0, or 0.6
LITTLE = " ".join(f"--{name}={str(value).lower()}" for name, value in UNOPTIMISED.items())
"""XLA reads it with the first computation; where its variable is set, that stays."""


def is_little(markexpr: str) -> bool:
    """Whether tests with these marks are compiled with `LITTLE`; else it is done as for users.

    Most programs of a test run once, and the rest of XLA's passes are the same; but the gradient of
    a maximum may be NaN (`findings/maximum_that_is_nowhere.sh`). Slow tests, alone or with all, and
    those in double precision have all of it, and so has what may run on a GPU: there, programs
    beside the kernels are to be those of users.
    """
    daily = "not slow" in markexpr and " or " not in markexpr
    return daily and not jax.config.jax_enable_x64 and not may_use_a_gpu()


def may_use_a_gpu() -> bool:
    """Whether JAX looks for one: no backend may be made to find out."""
    chosen = jax.config.jax_platforms
    if chosen:
        return chosen != "cpu"
    return any("cuda" in plugin.name for plugin in metadata.entry_points(group="jax_plugins"))
