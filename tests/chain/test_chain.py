"""The derivatives of a chain against JAX's own of the same layers."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nets import BATCH, NETS, draw, draw_for, kept, loss_of, plain, vgg11

import parscan_bp as pb
from parscan_bp.layers import Conv, Dropout, Flatten, Function, Layer, Linear, init
from parscan_bp.operators import Dense, Sparse, to_structure
from parscan_bp.planner import FLOPS, schedule
from parscan_bp.solve import solve_lower
from tests.family import jit_once

X64 = jnp.result_type(float) == jnp.float64
# Relative to the largest entry of a leaf. In float32 sums of a few hundred products are made in
# another order.
RTOL = 1e-10 if X64 else 2e-5
SOLVERS = {
    "none": None,
    "sweep": pb.Sweep(),
    "planned": pb.Planned(workers=4, machine=FLOPS),
    "blelloch": pb.Blelloch(),
    "blelloch-1": pb.Blelloch(up_levels=1),
    "scaled": pb.Blelloch(scaled=True),
}


def assert_close(got, want, rtol=RTOL):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = max(float(jnp.abs(b).max(initial=0)), 1e-30)
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, rtol=0, atol=rtol)


@functools.cache
def reference(name):
    layers, params, x = draw(name)
    loss = loss_of(functools.partial(plain, layers))
    return jit_once(jax.value_and_grad(loss, (0, 1)))(params, x)


# Every solver on two nets, and three of them on all; the rest by hand.
QUICK = {("lenet5", s) for s in SOLVERS if s != "scaled"} | {("mlp", s) for s in SOLVERS}
QUICK |= {(name, s) for name in NETS for s in ("none", "planned", "blelloch-1")}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(NETS, SOLVERS)
    ],
)
def test_gradients_with_every_solver(name, solver):
    layers, params, x = draw(name)
    loss = loss_of(functools.partial(pb.chain, layers, solver=SOLVERS[solver]))
    got = jit_once(jax.value_and_grad(loss, (0, 1)))(params, x)
    assert_close(got, reference(name))


def hvp(f, at, t):
    return jax.jvp(jax.grad(f, (0, 1)), at, t)[1]


def test_eager_derivatives_need_no_jit_and_values_are_the_layers_own():
    layers, params, x = draw("mlp")
    np.testing.assert_array_equal(
        jax.jit(functools.partial(pb.chain, layers))(params, x),
        jax.jit(functools.partial(plain, layers))(params, x),
    )
    loss = loss_of(functools.partial(pb.chain, layers))
    assert_close(jax.value_and_grad(loss, (0, 1))(params, x), reference("mlp"))


def test_shared_parameters_add_up():
    layers = [Linear(3), jnp.tanh, Linear(3), jnp.tanh, Linear(3)]
    own = Linear(3).init(jax.random.key(0), (3,))
    x = jax.random.normal(jax.random.key(1), (2, 3))

    def loss(run, own):
        return loss_of(run)([own, None, own, None, own], x)

    got, want = (
        jax.grad(lambda own, f=f: loss(f, own))(own)
        for f in (functools.partial(pb.chain, layers), functools.partial(plain, layers))
    )
    assert_close(got, want)


def check_vgg11(width, solver):
    layers = vgg11(width, 3)
    params, x = draw_for(layers, (1, 32, 32, 3))
    got, want = (
        jax.jit(jax.grad(loss_of(functools.partial(f, layers))))(params, x)
        for f in (functools.partial(pb.chain, solver=solver), plain)
    )
    assert_close(got, want)


@pytest.mark.parametrize("solver", ["none", pytest.param("blelloch-1", marks=pytest.mark.slow)])
def test_vgg11_with_one_channel_in_the_first_layer(solver):
    check_vgg11(1, SOLVERS[solver])


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["none", "sweep", "planned"])
def test_vgg11(solver):
    check_vgg11(64, SOLVERS[solver])


def test_pruned_layers():
    """Numbers outside of the mask count as zero, and have no cotangent."""
    layers, params, x = draw("pruned")
    stack = [pb.layers.as_layer(thing) for thing in layers]
    full = [dataclasses.replace(a, mask=None) if hasattr(a, "mask") else a for a in stack]
    zeroed = [
        {**p, "kernel": jnp.where(a.mask.as_mask().reshape(p["kernel"].shape), p["kernel"], 0)}
        if hasattr(a, "mask")
        else p
        for a, p in zip(stack, params, strict=True)
    ]
    np.testing.assert_array_equal(plain(layers, params, x), plain(full, zeroed, x))
    got = jax.grad(loss_of(functools.partial(pb.chain, layers)))(params, x)
    for a, ct in zip(stack, got, strict=True):
        if hasattr(a, "mask"):
            ct = np.asarray(ct["kernel"])
            assert not ct[~a.mask.as_mask().reshape(ct.shape)].any() and ct.any()
    ops = pb.layers.adjoint_operators(stack, params, pb.layers.activations(stack, params, x))
    assert type(ops[-1]) is Sparse and ops[-1].pattern.nnz == stack[-1].mask.nnz
    assert to_structure(ops[2], Sparse).pattern.nnz < ops[2].nnz


def test_a_pruned_convolution_is_pushed_through_entry_by_entry():
    layers = [Conv(256, (3, 3)), Conv(256, (3, 3), mask=kept((3, 3, 256, 256), 0.01))]
    params = jax.eval_shape(lambda key: init(layers, key, (4, 4, 256)), jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, 4, 4, 256), jnp.float32)
    made = pb.explain_chain(layers, params, x)
    (step,) = [step for step in made.steps if step.kind == "push"]
    assert type(step.task.operator) is Sparse
    assert "1 Conv" in str(made)


class Untouchable(Layer):
    """A layer whose Jacobian must not be asked for."""

    def apply(self, params, x):
        return x * params

    def adjoint_operator(self, params, x, y):
        raise AssertionError("the Jacobian of this layer is not needed")

    def pullback(self, params, x, y, ct):
        return jnp.sum(x * ct)


def test_the_first_jacobian_is_never_built():
    layers, x = [Untouchable(), jnp.tanh], jnp.ones((1, 2))
    loss = loss_of(lambda p, x: pb.chain(layers, [p, None], x))
    assert float(jax.grad(loss)(0.5, x)) != 0
    assert jax.jvp(lambda p: loss(p, x), (0.5,), (1.0,))[1] != 0
    with pytest.raises(AssertionError, match="not needed"):
        jax.grad(loss, 1)(0.5, x)


def test_no_convolution_in_the_program_makes_the_inputs_cotangent():
    layers, x = [Conv(5, (3, 3)), jax.nn.relu, Conv(7, (3, 3))], jnp.ones((1, 4, 4, 3))
    params = init(layers, jax.random.key(0), (4, 4, 3))
    loss = loss_of(lambda params, x: pb.chain(layers, params, x))
    shapes = {}
    for argnum in (0, 1):
        program = jax.jit(jax.grad(loss, argnum)).lower(params, x).as_text()
        found = [line for line in program.splitlines() if "stablehlo.convolution" in line]
        shapes[argnum] = [line.rsplit("->", 1)[1].strip() for line in found]
    cotangent = "tensor<1x4x4x3xf"
    assert not any(shape.startswith(cotangent) for shape in shapes[0])
    assert any(shape.startswith(cotangent) for shape in shapes[1])


def test_nothing_is_built_before_the_first_parameters_that_are_differentiated():
    layers, x = [Untouchable(), Untouchable(), Linear(2)], jnp.ones((1, 2))
    own = layers[2].init(jax.random.key(0), (2,))
    loss = loss_of(lambda own, x: pb.chain(layers, [1.0, 1.0, own], x))
    assert jax.tree.structure(jax.grad(loss)(own, x)) == jax.tree.structure(own)


def test_blelloch_makes_no_product_that_algorithm_1_overwrites(monkeypatch):
    """n operators, as many products as `complexity` says; A_1 keeps its form and is multiplied
    by no matrix."""
    layers = [Linear(k) for k in (5, 4, 3, 2)]
    params = init(layers, jax.random.key(0), (6,))
    made = []

    def note(a, b):
        product = compose(a, b)
        made.append(product.shape)
        return product

    compose = schedule.compose
    monkeypatch.setattr(schedule, "compose", note)
    pb.layer_cotangents(layers, params, jnp.ones((1, 6)), jnp.ones((1, 2)), solver=pb.Blelloch())
    assert made == [(4, 2)]
    assert pb.Blelloch().complexity(4).matrix_products == 1


def test_weights_are_shared_by_the_batch():
    layers, params, x = draw("lenet5")
    stack = [pb.layers.as_layer(thing) for thing in layers]
    xs = jax.eval_shape(functools.partial(pb.layers.activations, stack), params, x)
    ops = jax.eval_shape(functools.partial(pb.layers.adjoint_operators, stack), params, xs)
    for layer, a in zip(stack, ops, strict=True):
        assert a.stack_shape == (() if isinstance(layer, Conv | Linear | Flatten) else (BATCH,))


@pytest.mark.parametrize("solver", ["none", "sweep", "blelloch"])
def test_layer_cotangents(solver):
    layers, params, x = draw("vgg")
    stack = [pb.layers.as_layer(thing) for thing in layers]
    xs = pb.layers.activations(stack, params, x)
    ct = jnp.cos(jnp.arange(xs[-1].size, dtype=x.dtype)).reshape(xs[-1].shape)
    run = functools.partial(pb.layer_cotangents, layers, solver=SOLVERS[solver])
    got = jax.jit(run)(params, x, ct)

    @jax.jit
    def by_vjp(params, xs, ct):
        cts = [ct]
        for layer, p, x in zip(reversed(stack), reversed(params), reversed(xs[:-1]), strict=True):
            cts += jax.vjp(functools.partial(layer.apply, p), x)[1](cts[-1])
        return cts[::-1]

    assert_close(got, by_vjp(params, xs, ct))


def test_a_mask_has_no_cotangent_and_a_function_goes_through_sweep_only():
    layers = [Linear(4), Dropout(0.5), Function(lambda p, x: p * jnp.cumsum(x))]
    params = [Linear(4).init(jax.random.key(0), (3,)), jnp.array([[True, False, True, True]]), 2.0]
    x = jnp.ones((2, 3))
    loss = lambda run: lambda p: loss_of(run)([p, *params[1:2], p["bias"][0]], x)  # noqa: E731
    got, want = (jax.grad(loss(functools.partial(f, layers)))(params[0]) for f in (pb.chain, plain))
    assert_close(got, want)
    with pytest.raises(NotImplementedError, match=r"layers\[2\], Function.*MatrixFree"):
        jax.grad(loss(functools.partial(pb.chain, layers, solver=pb.Blelloch())))(params[0])


def test_a_second_call_traces_no_layer_again():
    traced = []
    layers = [Function(lambda p, x: (traced.append(1), p * jnp.sin(x))[1])]
    grad = jax.grad(loss_of(lambda p, x: pb.chain(layers, [p], x)), (0, 1))
    grad(2.0, jnp.ones((1, 2)))
    before = len(traced)
    grad(3.0, jnp.ones((1, 2)))
    assert before and len(traced) == before


def test_no_layers_are_the_identity():
    x = jnp.ones((1, 2))
    assert pb.chain([], [], x) is x


def test_lower_systems_are_solved_from_the_other_end():
    jacobians = [Dense(jnp.full((3, 2), 1.0)), Dense(jnp.full((1, 3), 2.0))]
    g = [jnp.ones(2), jnp.zeros(3), jnp.ones(1)]
    for solver in (pb.Sweep(), pb.Blelloch()):
        got = solve_lower(solver, jacobians, g)
        assert [v.tolist() for v in got] == [[1.0, 1.0], [2.0] * 3, [13.0]]


@pytest.mark.reads_compiled
def test_a_hessian_vector_product_multiplies_no_more_than_jax_does():
    """The sweep is differentiated as it stands, not solved again for the tangents."""
    layers, *at = draw("mlp")

    def products(run):
        product = functools.partial(hvp, loss_of(functools.partial(run, layers)))
        return jax.jit(product).lower(at, at).compile().as_text().count(" dot(")

    assert 0 < products(pb.chain) <= products(plain)


def test_a_layer_with_effects_has_second_derivatives():
    seen = []

    def layer(params, x):
        jax.debug.callback(seen.append, x.sum())
        return jnp.tanh(x)

    layers = [Linear(4), Function(layer), Linear(2)]
    silent = [layers[0], jnp.tanh, layers[2]]
    at = init(layers, jax.random.key(0), (3,)), jnp.ones((2, 3))
    got, want = (
        jit_once(functools.partial(hvp, loss_of(functools.partial(f, own))))(at, at)
        for f, own in ((pb.chain, layers), (plain, silent))
    )
    jax.effects_barrier()
    assert seen
    assert_close(got, want, RTOL if X64 else 2e-4)


def clipped():
    """sin with a VJP of its own, which is no derivative and not linear."""
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct * jnp.cos(x), -0.5, 0.5),))
    return f


@pytest.mark.parametrize("within", [lambda f, p, x: p * f(x), lambda f, p, x: f(p * x)])
def test_a_function_with_a_vjp_of_its_own_has_gradients(within):
    layers = [Function(functools.partial(within, clipped()))] * 2
    at = [1.5, 2.0], jnp.array([[0.1, 0.7], [1.2, 2.0]])
    for way in (lambda f: f, jax.jit):
        got, want = (
            way(jax.grad(loss_of(functools.partial(f, layers)), (0, 1)))(*at)
            for f in (pb.chain, plain)
        )
        assert_close(got, want)
        with pytest.raises(TypeError, match="forward-mode autodiff"):
            way(lambda *at: jax.jvp(functools.partial(pb.chain, layers), at, at))(*at)


def test_a_python_number_is_a_tangent():
    layers, x = [Function(lambda p, x: p * jnp.sin(x))], jnp.array([[0.1, 0.7]])
    push = lambda f: lambda p: jax.jvp(lambda p: f(layers, [p], x), (p,), (2.0,))[1]  # noqa: E731
    for way in (lambda f: f, jax.jit, jax.vmap):
        at = jnp.array([0.7]) if way is jax.vmap else 0.7
        assert_close(way(push(pb.chain))(at), way(push(plain))(at))


def test_cotangents_of_weakly_typed_numbers_are_weakly_typed():
    layers, x = [Function(lambda p, x: p * x)], jnp.ones((1, 2))
    for way in (lambda f: f, jax.jit):
        for at in ((2.0, x), (2.0, 3.0 * jnp.broadcast_to(1.0, (1, 2)))):
            got, want = (
                way(jax.grad(lambda p, x: f(layers, [p], x).sum(), (0, 1)))(*at)
                for f in (pb.chain, plain)
            )
            assert [jax.typeof(v) for v in got] == [jax.typeof(v) for v in want]
