"""Structure found from the jaxpr, against expectation and against the true dense Jacobian."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_jacobian import (
    Question,
    along_axes,
    assert_claims_hold,
    is_diagonal,
    jacobian_supports,
    random_like,
    trace,
)
from jax import lax
from structure_zoo import ZOO
from zoo_case import B, H, W, array

from parscan_bp.structure import check_structure, find_structure, unsupported

DIFFERENTIABLE = [name for name, case in ZOO.items() if case.derivative]
TOGETHER = 16
"""Steps that are differentiated in one program."""


@functools.cache
def found(name):
    body, num_carry = trace(ZOO[name])
    return body, find_structure(body, 0, num_carry)


def truth(name):
    """The support of the Jacobian, found with those of its neighbours: a program each is long."""
    first = DIFFERENTIABLE.index(name) // TOGETHER * TOGETHER
    return _truths(*DIFFERENTIABLE[first : first + TOGETHER])[name]


@functools.cache
def _truths(*names):
    questions = []
    for name in names:
        case, (body, structure) = ZOO[name], found(name)
        points = [random_like((case.carry, case.x), seed) for seed in (0, 1)]
        reverse = "custom_vjp_call" in case.unsupported
        questions.append(Question(body, structure.float_carry, points, reverse))
    return dict(zip(names, jacobian_supports(questions), strict=True))


@pytest.mark.parametrize("name", ZOO)
def test_expected(name):
    case, (body, structure) = ZOO[name], found(name)
    n = len(structure.float_carry)
    assert structure.batch_axes == case.batch
    assert structure.diagonal == case.diagonal
    assert structure.depends == (case.depends or ((True,) * n,) * n)
    batched = any(case.batch)
    assert structure.kind == ("diagonal" if case.diagonal else "block" if batched else "dense")
    assert {reason.primitive for reason in unsupported(body)} == set(case.unsupported)
    assert hash(structure) == hash(dataclasses.replace(structure))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_claims_hold_for_the_dense_jacobian(name):
    assert_claims_hold(found(name)[1], truth(name))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_claims_miss_nothing_but_where_known(name):
    """Guards against vacuous claims and stale `loose` marks."""
    structure, support = found(name)[1], truth(name)
    depends = tuple(tuple(bool(block.any()) for block in row) for row in support)
    if 0 in {block.size for row in support for block in row}:
        pytest.skip("an empty Jacobian satisfies every claim")
    as_good = structure.depends == depends and structure.diagonal == is_diagonal(support)
    if len(support) == 1 and support[0][0].any():
        ndim = support[0][0].ndim // 2
        axes = tuple(a for a in range(ndim) if along_axes(support, (a,)))
        trivial = {a for a in range(ndim) if support[0][0].shape[a] == 1}
        as_good &= set(structure.batch_axes[0]) | trivial == set(axes) | trivial
    elif ZOO[name].loose:
        as_good &= structure.batch_shape != ()
    assert as_good != ZOO[name].loose


@pytest.mark.parametrize("shape", [(2, 3), (200_000, 300_000)])
def test_the_sizes_of_the_arrays_do_not_matter(shape):
    """Nothing of the size of the carry is ever made: this one would take 240 GB."""
    rows, features = shape
    body = jax.make_jaxpr(lambda w, h, x: jax.nn.relu(h @ w).cumsum(1) + x)(
        array(features, features), array(*shape), array(*shape)
    )
    structure = find_structure(body, 1, 1)
    assert structure.batch_axes == ((0,),)
    assert structure.batch_shape == (rows,)
    assert structure.mixed_by == ("dot_general",)


def test_constants_are_not_carry():
    step = lambda w, h, x: (jnp.tanh(h @ w + w.sum() * x), w.mean(0))  # noqa: E731
    body = jax.make_jaxpr(step)(array(H, H), array(B, H), array(B, H))
    assert find_structure(body, 1, 1).batch_axes == ((0,),)


def test_mixed_by_names_the_primitives_in_order():
    def step(h, x):
        return jnp.tanh((h - h.mean(0)) @ W) + x, h.max()

    body = jax.make_jaxpr(step)(array(B, H), array(B, H))
    assert find_structure(body, 0, 1).mixed_by == ("reduce_sum", "dot_general")
    assert found("transpose")[1].mixed_by == ("carry",)
    assert found("identity")[1].mixed_by == ()
    assert found("mutable_array")[1].mixed_by == ("new_ref",)


def test_components_and_one_block_at_a_time():
    """A loss beside the state makes the whole dense, but block triangular."""
    body, whole = found("loss_in_the_carry")
    assert (whole.kind, whole.components) == ("dense", ((0,), (1,)))
    state, loss = (find_structure(body, 0, 2, leaves=c) for c in whole.components)
    assert (state.float_carry, state.batch_axes, state.kind) == ((0,), ((0,),), "block")
    assert (loss.float_carry, loss.depends, loss.kind) == ((1,), ((True,),), "diagonal")
    assert found("clock_in_the_carry")[1].components == ((1,), (0,))
    assert found("swapped_leaves")[1].components == ((0, 1),)
    assert found("empty_carry")[1].components == ()


def test_inert_leaves_are_named():
    assert found("inert_scalar")[1].active == (True, False)
    assert found("previous_input_used")[1].active == (True, True)


@pytest.mark.parametrize("counts", [(2, 1), (1, 1), (0, 3)])
def test_wrong_counts(counts):
    body = jax.make_jaxpr(lambda h, x: (h * x.sum(), x))(array(B, H), array(H))
    with pytest.raises(ValueError, match="num_carry"):
        find_structure(body, *counts)


def test_wrong_leaves():
    body, _ = found("integer_carry")
    with pytest.raises(ValueError, match=r"leaves: \[1\].*choose among \(0,\)"):
        find_structure(body, 0, 2, leaves=(1,))


# --- the debug check ------------------------------------------------------------------------------

CHECKED = """elman lstm lru conv batch_at_different_places independent_leaves_turned swapped_leaves
    bfloat16_carry key_carry integer_carry scalar_carry empty_carry no_features custom_vjp
    while_loop cond_on_input previous_input_used""".split()


def arguments(name):
    case = ZOO[name]
    return (), random_like(case.carry, 3), random_like(case.x, 3), jax.random.key(0)


@pytest.mark.parametrize("name", CHECKED)
def test_check_accepts(name):
    check_structure(*found(name), *arguments(name), probes=1)


@pytest.mark.parametrize(
    "name, wrong, message",
    [
        ("elman", {"batch_axes": ((1,),), "batch_shape": (H,)}, r"batch axis 0 .* leaf 0, entry"),
        ("elman", {"diagonal": True}, r"diagonal .* leaf 0, entry \(\d, \d\): the tangent is"),
        ("elman", {"depends": ((False,),)}, r"independence of leaf 0 of carry "),
        ("flip_batch", {"batch_axes": ((0, 1),), "batch_shape": (B, H)}, r"batch axis 0"),
        ("lstm", {"depends": ((True, False), (True, True))}, r"independence of leaf 1 .* leaf 0"),
        ("swapped_leaves", {"diagonal": True}, r"diagonal"),
        ("integer_from_floats", {"depends": ((False,),)}, r"leaf 0, entry \(0, 0\)"),
        ("custom_vjp", {"depends": ((False,),)}, r"independence of leaf 0 of carry' .* cotangent"),
    ],
)
def test_check_refutes(name, wrong, message):
    body, structure = found(name)
    consts, carry, x, key = arguments(name)
    with pytest.raises(ValueError, match=message):
        check_structure(body, dataclasses.replace(structure, **wrong), consts, carry, x, key)


def test_check_of_a_stated_diagonal_behind_custom_vjp():
    body, structure = found("custom_vjp")
    stated = dataclasses.replace(structure, diagonal=True)
    check_structure(body, stated, *arguments("custom_vjp"))


def test_check_takes_consts_and_pytrees():
    body = jax.make_jaxpr(lambda w, h, x: jnp.tanh(h["a"] @ w + x))(
        array(H, H), {"a": array(B, H)}, array(B, H)
    )
    structure = find_structure(body, 1, 1)
    h, x = {"a": jnp.ones((B, H))}, jnp.ones((B, H))
    check_structure(body, structure, [jnp.ones((H, H))], h, x, jax.random.key(1))
    with pytest.raises(ValueError, match="got 2 arrays for a body of 3 inputs"):
        check_structure(body, structure, [], h, x, jax.random.key(1))


def test_find_structure_while_tracing():
    """A custom rule that is opened up inside an outer transformation leaks nothing."""

    def outer(h):
        body = jax.make_jaxpr(lambda h, x: jax.nn.relu(h @ W) + x)(h, h)
        assert find_structure(body, 0, 1).batch_axes == ((0,),)
        return lax.stop_gradient(h).sum()

    h = np.ones((B, H))
    with jax.check_tracer_leaks():
        jax.jit(jax.grad(outer))(h)
        jax.vmap(outer)(h[None])
