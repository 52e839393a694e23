"""What a tree that somebody writes is given, and what it has to return."""

import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb
from parscan_bp.operators import Diagonal
from parscan_bp.solvers import Complexity, TreeSolver


class Loop(TreeSolver):
    """A tree that is none, whose author has another order in mind."""

    def states(self, leaving, state, operator):
        shown = []
        for t, b in enumerate(leaving):
            shown.append(state)
            state = operator.take(t).matvec(state) + b
        return jnp.stack(shown), state

    def complexity(self, n):
        return Complexity(n, 0, n, n)


class Swapped(Loop):
    def states(self, leaving, state, operator):
        return super().states(leaving, state, operator)[::-1]


class Renamed(Loop):
    def states(self, maps, b, v):
        return super().states(b, v, maps)


def test_what_a_tree_is_given_and_returns():
    rng = np.random.default_rng(0)
    maps, g = (jnp.asarray(rng.normal(size=(n, 3))) for n in (7, 8))
    system = pb.Uniform(Diagonal(maps), g)
    np.testing.assert_allclose(pb.solve(system, Loop()), pb.solve(system), rtol=1e-5)
    message = r"Swapped.states returned \(\(3,\), \(7, 3\)\), in shapes; \(the state that enters"
    with pytest.raises(ValueError, match=message):
        pb.solve(system, Swapped())
    with pytest.raises(TypeError, match="unexpected keyword argument 'operator'"):
        pb.solve(system, Renamed())
