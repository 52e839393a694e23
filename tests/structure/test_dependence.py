"""Plain dependence, forwarded outputs, and the reasons why a body is unsupported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_jacobian import random_like, trace
from jax import lax
from jax.extend.core import jaxpr_as_fun
from structure_zoo import ZOO
from zoo_case import B, H, W, array
from zoo_control import reverse_only

from parscan_bp.jaxprs.dependence import dependencies, forwarded
from parscan_bp.structure import Reason, unsupported

F, I = array(B, H), array(dtype=int)


def depends(f, *args):
    return dependencies(jax.make_jaxpr(f)(*args)).astype(int).tolist()


def names(f, *args, **kwargs):
    return [reason.primitive for reason in unsupported(jax.make_jaxpr(f)(*args), **kwargs)]


# --- dependencies ---------------------------------------------------------------------------------


def rotate(n, a, b, c):
    return lax.fori_loop(0, n, lambda _, s: (s[1], s[2], 0.0 * s[2]), (a, b, c))


@pytest.mark.parametrize(
    "f, args, expected",
    [
        (lambda a, b: (a, b * b, 1.0), (F, F), [[1, 0], [0, 1], [0, 0]]),
        (lambda a, i: (a.sum().astype(int) + i, a), (F, I), [[1, 1], [1, 0]]),
        (lambda a, b: jnp.where(a > 0, b, 0.0), (F, F), [[1, 1]]),
        (lambda a, b: lax.stop_gradient(a) + 1, (F, F), [[1, 0]]),
        (lambda a, b: jax.jit(lambda a, b: (b, a))(a, b), (F, F), [[0, 1], [1, 0]]),
        (lambda a, b: jax.checkpoint(lambda a, b: (b, a))(a, b), (F, F), [[0, 1], [1, 0]]),
        (lambda a, b: (reverse_only(a), b), (F, F), [[1, 0], [0, 1]]),
        (lambda a, b: (jax.nn.relu(b), a), (F, F), [[0, 1], [1, 0]]),
        (
            lambda i, a, b: lax.cond(i > 0, lambda: (a, a), lambda: (2 * a, b)),
            (I, F, F),
            [[1, 1, 0], [1, 1, 1]],
        ),
        (lambda a, b, c: rotate(1, a, b, c), (F, F, F), [[1, 1, 1], [0, 1, 1], [0, 0, 1]]),
        (rotate, (I, F, F, F), [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1]]),
        (
            lambda a, b, x: lax.scan(lambda s, r: (s + r, (r * b[0], s)), a, x),
            (array(H), F, F),
            [[1, 0, 1], [0, 1, 1], [1, 0, 1]],
        ),
        (
            lambda a, b: (lax.custom_linear_solve(lambda v: 2 * v, a, lambda _, r: r / 2), b),
            (F, F),
            [[1, 0], [0, 1]],
        ),
        (ZOO["mutable_array"].step, (F, F), [[1, 1]]),
        (lambda: (), (), []),
    ],
)
def test_dependencies(f, args, expected):
    assert depends(lambda *a: jax.tree.leaves(f(*a)), *args) == expected


def test_shape_without_outputs_or_inputs():
    assert dependencies(jax.make_jaxpr(lambda a: ())(1.0)).shape == (0, 1)
    assert dependencies(jax.make_jaxpr(lambda: 1.0)()).shape == (1, 0)


@pytest.mark.parametrize(
    "name",
    "key_carry integer_from_floats boolean_carry previous_input_logged clock_in_the_carry "
    "scan_with_rotating_carry while_loop cond_on_carry custom_jvp_lying loss_in_the_carry".split(),
)
def test_independent_outputs_do_not_change(name):
    """By value: replace one input, look at the outputs that promise not to notice."""
    case = ZOO[name]
    body, _ = trace(case)
    matrix, run = dependencies(body), jax.jit(jaxpr_as_fun(body))
    data = jax.random.key_data
    plain = lambda v: data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v  # noqa: E731
    old, new = (random_like((case.carry, case.x), seed) for seed in (0, 1))
    before = [np.asarray(plain(v)) for v in run(*old)]
    for i in range(len(old)):
        after = [np.asarray(plain(v)) for v in run(*old[:i], new[i], *old[i + 1 :])]
        changed = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        assert not (np.array(changed) & ~matrix[:, i]).any()


# --- forwarded ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step, expected",
    [
        (lambda h, x: ((h + x, h * x), None), ()),
        (lambda h, x: (lambda a, b: ((a, b), (b, a, b)))(h + x, h * x), (1, 0, 1)),
        (lambda h, x: ((h + x, h * x), h + x), (None,)),
        (lambda h, x: ((h + x, h), (x, h)), (None, 1)),
        (jax.jit(lambda h, x: (lambda a: ((a, h), (a, h)))(h + x)), (0, 1)),
        (lambda h, x: (lambda a: ((jax.jit(lambda v: (v, v))(a)[1], h), a))(h + x), (0,)),
        (jax.checkpoint(lambda h, x: (lambda a: ((a, 1.0), (1.0, a)))(jnp.sin(h))), (None, 0)),
        (lambda h, x: (lambda a: ((a, a), a))(reverse_only(h)), (0,)),
    ],
)
def test_forwarded(step, expected):
    assert forwarded(jax.make_jaxpr(step)(F, F), 2) == expected


# --- unsupported ----------------------------------------------------------------------------------


def loop(h):
    return lax.while_loop(lambda v: v.sum() < 9.0, lambda v: v * v, h)


@pytest.mark.parametrize(
    "f, expected",
    [
        (lambda h: jnp.tanh(h @ W), []),
        (lambda h: lax.fori_loop(0, 3, lambda i, v: v * i, h), []),
        (lambda h: h * lax.while_loop(lambda n: n < h.sum(), lambda n: n + 1, 0), []),
        (lambda h: h * loop(lax.stop_gradient(h)), []),
        (lambda h: loop(h), ["while"]),
        (lambda h: lax.cond(h.sum() > 0, jax.jit(loop), jnp.sin, h), ["while"]),
        (lambda h: lax.scan(lambda s, v: (loop(s), loop(v)), h[0], h), ["while"]),
        (lambda h: jax.vmap(jax.checkpoint(reverse_only))(h), ["custom_vjp_call"]),
        (lambda h: lax.map(lambda v: jax.jit(reverse_only)(v), h), ["custom_vjp_call"]),
        (lambda h: jax.pure_callback(np.sin, h, h), ["pure_callback"]),
        (lambda h: jax.pure_callback(lambda b: b + h.dtype.type(0), h, h > 0), []),
        (lambda h: jax.jit(lambda v: jax.debug.print("{}", v))(h), ["debug_print"]),
        (lambda h: jax.experimental.io_callback(np.sin, h, h), ["io_callback", "io_callback"]),
        (lambda h: jax.new_ref(h)[...], ["new_ref", "get"]),
    ],
)
def test_unsupported(f, expected):
    assert names(f, F) == expected


def test_a_ref_that_is_closed_over():
    ref = jax.new_ref(jnp.ones(H))
    assert names(lambda h: h + ref[...], F) == ["get"]


def test_reasons_are_values():
    """Two calls are one reason; an effect on a tangent's way is two."""
    (reason,) = unsupported(jax.make_jaxpr(lambda h: reverse_only(reverse_only(h)))(F))
    assert reason == Reason("custom_vjp_call", reason.message)
    assert "linearised" in reason.message


def test_inactive_inputs_excuse_a_callback_and_a_loop():
    def f(h, x):
        return h * jax.pure_callback(np.sin, x, x) * loop(x)

    assert names(f, F, F) == ["pure_callback", "while"]
    assert names(f, F, F, active=[True, False]) == []
    with pytest.raises(ValueError, match="got 1 flags for a jaxpr of 2 inputs"):
        names(f, F, F, active=[True])
