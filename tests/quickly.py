"""Compilation without optimisation: of programs that run once it is most of the time."""

import functools

import jax

UNOPTIMISED = {"xla_backend_optimization_level": 0}
jit_quickly = functools.partial(jax.jit, compiler_options=UNOPTIMISED)
