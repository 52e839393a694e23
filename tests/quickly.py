"""Compilation without optimisation: of programs that run once it is most of the time."""

import functools

import jax

from tests.optimisation import UNOPTIMISED

jit_quickly = functools.partial(jax.jit, compiler_options=UNOPTIMISED)
