"""Networks that are graphs: trained as by `jax.grad`, by trees of products, and counted."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_nets import SMALL, table

import parscan_bp as pb
from parscan_bp.planner import schedule
from parscan_bp.solvers import cyclic_reduction
from tests.family import jit_once

X64 = jnp.result_type(float) == jnp.float64
RTOL = 1e-9 if X64 else 1e-3
PAGE = pathlib.Path(__file__).parents[2] / "docs/graphs.md"
NETS = [pytest.param(name, marks=[] if name == "U-Net" else pytest.mark.slow) for name in SMALL]
TREES = {"blelloch": pb.Blelloch(), "cyclic reduction": pb.CyclicReduction()}


def loss_of(run, target):
    return lambda params, inputs: jnp.mean((run(params, inputs) - target) ** 2)


def target_of(size, params, inputs):
    y = jax.eval_shape(size.plain, params, inputs)
    return jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)


def assert_close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = max(float(np.abs(b).max(initial=0)), 1e-6)
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, rtol=0, atol=RTOL)


@pytest.mark.parametrize("name", NETS)
def test_twenty_steps_of_training_are_those_of_jax_grad(name):
    size = SMALL[name]
    params, inputs = size.draw(4)
    target = target_of(size, params, inputs)

    def train(run, params, inputs):
        def step(params, _):
            value, grads = jax.value_and_grad(loss_of(run, target))(params, inputs)
            return jax.tree.map(lambda p, g: p - 0.02 * g, params, grads), value

        return jax.lax.scan(step, params, None, length=20)

    both = jit_once(lambda *at: [train(run, *at) for run in (size.graph, size.plain)])
    (got, losses), want = both(params, inputs)
    assert losses[-1] < losses[0]
    assert_close((got, losses), want)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("tree", TREES)
def test_gradients_by_products_of_jacobians(name, tree, monkeypatch):
    size, made = SMALL[name], []
    compose = schedule.compose

    def note(a, b):
        made.append(compose(a, b))
        return made[-1]

    for module in (schedule, cyclic_reduction):
        monkeypatch.setattr(module, "compose", note)
    params, inputs = size.draw(2)
    target = target_of(size, params, inputs)
    graph = lambda *at: size.graph(*at, solver=TREES[tree])  # noqa: E731
    runs = [loss_of(run, target) for run in (graph, size.plain)]
    got, want = jit_once(lambda *at: [jax.grad(f, (0, 1))(*at) for f in runs])(params, inputs)
    assert_close(got, want)
    # JAX traces the solution more than once.
    steps = len(size.nodes)
    products = TREES[tree].complexity(steps).matrix_products
    assert len(made) >= products > steps // 2
    if tree == "blelloch":
        assert len(made) % products == 0


@pytest.mark.slow
def test_the_table_of_the_page_is_what_is_counted():
    assert table() in PAGE.read_text()
