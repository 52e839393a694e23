"""Primitives outside JAX, of which a batch may be other than its entries, and steps with them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def _primitive(name: str, f: Callable) -> Primitive:
    """A primitive of one array that does ``f``."""
    p = Primitive(name)
    p.def_impl(f)

    def types(aval):
        out = jax.eval_shape(f, aval)
        return aval.update(shape=out.shape, dtype=out.dtype, weak_type=False)

    p.def_abstract_eval(types)
    mlir.register_lowering(p, mlir.lower_fun(f, False))
    return p


def _without_derivative(p: Primitive) -> None:
    def rule(at, _):
        value = p.bind(*at)
        return value, ad.Zero(jax.typeof(value).to_tangent_aval())

    ad.primitive_jvps[p] = rule


any_negative = _primitive("any_negative", lambda v: jnp.any(v < 0))
"""Its batching rule asks the whole batch."""
_without_derivative(any_negative)
batching.primitive_batchers[any_negative] = lambda v, _: (any_negative.bind(*v), None)

unmapped = _primitive("unmapped", lambda v: jnp.ones((), v.dtype))
"""1 of a value by itself, 1/2 of the entries of a batch."""
_without_derivative(unmapped)
batching.primitive_batchers[unmapped] = lambda v, _: (0.5 * unmapped.bind(*v), None)

halved = _primitive("halved", lambda v: 0.5 * v)
"""Refuses `jax.vmap`."""
ad.deflinear2(halved, lambda ct, _: [halved.bind(ct)])

centred = _primitive("centred", lambda v: v - jnp.mean(v))
"""Its derivative is itself, and looks at the batch."""
ad.deflinear2(centred, lambda ct, _: [centred.bind(ct)])
batching.primitive_batchers[centred] = lambda v, axes: (centred.bind(*v), axes[0])


@custom_vmap
def for_all(flag):
    return flag


@for_all.def_vmap
def _(size, batched, flag):
    return jnp.all(flag), False


@jax.custom_jvp
def ruled(x):
    """`unmapped` is seen in its rule alone."""
    return jnp.sin(x)


@ruled.defjvp
def _(primals, tangents):
    return ruled(*primals), unmapped.bind(*primals) * jnp.cos(*primals) * tangents[0]


def _counted(v):
    """A callback for whole arrays."""
    return np.asarray((np.asarray(v) < 0).sum(), np.int32)


def called_back(v, vmap_method="broadcast_all"):
    struct = jax.ShapeDtypeStruct((), np.int32)
    return jax.pure_callback(_counted, struct, jax.lax.stop_gradient(v), vmap_method=vmap_method)


def drawn(x, impl):
    """Noise of a key that is made of the input."""
    key = jax.random.key((1000 * jnp.abs(x[0])).astype(int), impl=impl)
    return jax.random.normal(key, x.shape, x.dtype)


def _gated(flag, h, x):
    return jnp.tanh(1.3 * h + x) * jnp.where(flag, 0.5, 1.0)


def _in_branch(h, x):
    gate = lambda h: jnp.sin(h) * jnp.where(any_negative.bind(h), 0.5, 1.0)  # noqa: E731
    return jax.lax.cond(h.sum() > 0, gate, lambda h: 0.5 * h, h) + x


def _in_loop(h, x):
    one = lambda h, _: (jnp.sin(h) * jnp.where(any_negative.bind(h), 0.5, 1.0), None)  # noqa: E731
    return jax.lax.scan(one, h, None, length=2)[0] + x


STEPS = {
    "any_negative": lambda h, x: _gated(any_negative.bind(h), h, x),
    "halved": lambda h, x: jnp.tanh(halved.bind(3 * h) + x),
    "centred": lambda h, x: jnp.tanh(centred.bind(1.3 * h) + x),
    "custom_vmap_call": lambda h, x: _gated(for_all(h.mean() < 0), h, x),
    "random_seed": lambda h, x: jnp.tanh(1.3 * h + x + drawn(x, "rbg")),
    "pure_callback": lambda h, x: _gated(called_back(h) > 1, h, x),
    "unmapped": lambda h, x: ruled(1.3 * h) + x,
}
"""``(h, x) -> new h`` of three numbers, by the primitive."""

INSIDE = {
    "branch": _in_branch,
    "loop": _in_loop,
    "checkpoint": lambda h, x: jax.checkpoint(STEPS["any_negative"])(h, x),
}
"""Steps with `any_negative` at some depth."""
