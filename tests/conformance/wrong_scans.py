"""Scans that are wrong in one way each, or right: what the suite is to tell of them."""

import jax
import jax.numpy as jnp
from jax import lax


def right(f, init, xs=None, length=None, reverse=False, unroll=1):
    return lax.scan(f, init, xs, length, reverse, unroll)


def cuts_gradients(f, init, xs=None, length=None, reverse=False, unroll=1):
    """Truncated back-propagation that nobody asked for: values are right."""
    cut = lambda c, x: f(jax.tree.map(_stopped, c), x)  # noqa: E731
    return lax.scan(cut, init, xs, length, reverse, unroll)


def _stopped(v):
    return lax.stop_gradient(v) if jnp.issubdtype(v.dtype, jnp.inexact) else v


def forgets_to_reverse(f, init, xs=None, length=None, reverse=False, unroll=1):
    return lax.scan(f, init, xs, length, False, unroll)


def counts_from_one(f, init, xs=None, length=None, reverse=False, unroll=1):
    """Integers of the last carry are off by one."""
    last, ys = lax.scan(f, init, xs, length, reverse, unroll)
    off = lambda v: v + 1 if jnp.issubdtype(v.dtype, jnp.integer) else v  # noqa: E731
    return jax.tree.map(off, last), ys


def widens(f, init, xs=None, length=None, reverse=False, unroll=1):
    """Weak types of the last carry are gone."""
    last, ys = lax.scan(f, init, xs, length, reverse, unroll)
    return jax.tree.map(lambda v: lax.convert_element_type(v, v.dtype), last), ys


def has_no_forward_mode(f, init, xs=None, length=None):
    """Nor the argument ``reverse``."""

    @jax.custom_vjp
    def same(v):
        return v

    same.defvjp(lambda v: (v, None), lambda _, ct: (ct,))
    last, ys = lax.scan(f, init, xs, length)
    return jax.tree.map(lambda v: same(v) if jnp.issubdtype(v.dtype, jnp.inexact) else v, last), ys


def refuses_integers(f, init, xs=None, length=None, reverse=False, unroll=1, *, strict=False):
    if strict and any(jnp.result_type(v) == jnp.int32 for v in jax.tree.leaves(init)):
        raise NotImplementedError("init: got integers, which this scan cannot carry")
    return lax.scan(f, init, xs, length, reverse, unroll)


def raises_addresses(f, init, xs=None, length=None, reverse=False, unroll=1):
    raise ValueError(f"got {object()}")
