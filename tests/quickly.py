"""Compilation with little optimisation, of programs that run once, and with all of it."""

import functools

import jax

UNOPTIMISED = {"xla_backend_optimization_level": 0}
jit_quickly = functools.partial(jax.jit, compiler_options=UNOPTIMISED)
OPTIMISED = {"xla_backend_optimization_level": 3}
jit_optimised = functools.partial(jax.jit, compiler_options=OPTIMISED)
