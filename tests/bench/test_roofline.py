"""What the roofline counts is what is in the program of a gradient; its shares are of its times."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from flax import nnx

from bench.__main__ import main
from bench.grids import roofline, workloads

FUNCTIONS = ("tanh", "logistic")


def _count(jaxpr, times=1):
    """Flops of products and values of functions, a loop's steps as often as they run."""
    flops = values = 0
    for eqn in jaxpr.eqns:
        name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
        if name == "dot_general":
            ((summed, _), _) = eqn.params["dimension_numbers"]
            summed = [eqn.invars[0].aval.shape[k] for k in summed]
            flops += 2 * times * math.prod([*shape, *summed])
        elif name in FUNCTIONS:
            values += times * math.prod(shape)
        of = times * (eqn.params["length"] if name == "scan" else 1)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            more = _count(inner, of)
            flops, values = flops + more[0], values + more[1]
    return flops, values


@pytest.mark.parametrize("cell", roofline.CELLS)
def test_counts_are_those_of_a_gradient(cell):
    size = workloads.Size(cell, 5, 3, 7)
    made = getattr(nnx, roofline.CELLS[cell].name)(5, 5, rngs=nnx.Rngs(0))
    graph, point = nnx.split(made)

    def loss(point, xs):
        return jnp.sum(nnx.RNN(nnx.merge(graph, point))(xs))

    closed = jax.make_jaxpr(jax.value_and_grad(loss, (0, 1)))(point, jnp.ones((3, 7, 5)))
    counts = roofline.counts(size)
    assert (counts["products"], counts["functions"]) == _count(closed.jaxpr)


def test_shares_are_of_the_time(tmp_path, capsys):
    main(["roofline", "--quick", "--out", str(tmp_path)])
    assert "GRU H=4 B=2 T=8" in capsys.readouterr().out
    seconds = {"median": 2.0}
    entry = {"counts": {"products": 8, "memory": 6}, "rates": {"products": 16, "memory": 12}}
    page = roofline.page({"one": {**entry, "seconds": seconds}})
    assert page.endswith("| one | 2000.00 | 500.00 | 500.00 | 50 % |")
