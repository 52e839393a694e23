"""An operator and solvers as somebody writes them outside the package, each one class."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp import kernels
from parscan_bp.layers import Linear, init
from parscan_bp.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Identity,
    MatrixFree,
    Operator,
    Structure,
    compose,
    compose_cost,
    for_trees,
    join,
    stack,
    to_scaled,
    to_structure,
)
from parscan_bp.solvers import Complexity, Solver, TreeSolver
from tests.family import jit_once

N, H = 7, 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scalar(Operator):
    """A v = factor v."""

    factor: jax.Array
    size: int = dataclasses.field(metadata={"static": True})

    core_ndims: ClassVar = {"factor": 0}
    closed: ClassVar = True

    @property
    def shape(self):
        return (self.size, self.size)

    def matvec(self, v):
        self.check_vector(v)
        return self.factor[..., None] * v

    def transpose(self):
        return self

    def as_dense(self):
        return self.factor[..., None, None] * jnp.eye(self.size, dtype=self.factor.dtype)

    def cost(self):
        return self.cost_of(self.size)

    def after(self, first):
        return dataclasses.replace(self, factor=self.factor * first.factor)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Plain(Scalar):
    """The same without a word about products."""

    closed: ClassVar = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Held(Scalar):
    """The same, of which it is known what holds it."""

    held_by: ClassVar = {Diagonal: lambda op: Diagonal(op.matvec(jnp.ones(op.size)))}


@dataclasses.dataclass(frozen=True)
class TwoLevel(Solver):
    """A sweep over stretches of some steps, and one inside each: it multiplies vectors alone."""

    inside: int = 2

    needs: ClassVar = "products"
    ragged: ClassVar = True

    def run(self, system, state):
        n, parts = system.length, []
        starts = range(0, n, self.inside)
        for start in reversed(starts) if system.backward else starts:
            size = min(self.inside, n - start)
            block = system.block(start, size)
            leaves, rebuild = block.operator.unstack()

            def step(state, t, rebuild=rebuild):
                leaves, entering, leaving = t
                shown = state if entering is None else jax.tree.map(jnp.add, entering, state)
                out = rebuild(leaves).matvec(shown)
                return out if leaving is None else jax.tree.map(jnp.add, out, leaving), shown

            each = (leaves, block.entering, block.leaving)
            state, shown = lax.scan(step, state, each, size, reverse=system.backward)
            parts.append(system.collect(start, shown, state))
        summed = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), [s for s, _ in parts])
        stacked = [s for _, s in parts][:: -1 if system.backward else 1]
        return state, summed, jax.tree.map(lambda *a: jnp.concatenate(a), *stacked)

    def run_ragged(self, system):
        out = [system.g[-1]]
        for a, g in zip(reversed(system.operators), reversed(system.g[:-1]), strict=True):
            out.append(a.matvec(out[-1]) + (0 if g is None else g))
        return out[::-1]

    def complexity(self, n):
        return Complexity(steps=n, matrix_products=0, vector_products=n, operators=self.inside)


@dataclasses.dataclass(frozen=True)
class Prefixes(Solver):
    """All products by one sweep of matrices. No `TreeSolver`, and yet one that multiplies."""

    def run(self, system, state):
        block = system.block(0, system.length)
        maps = for_trees(block.operator).broadcast(system.length)
        b = jnp.zeros((system.length, *state.shape)) if block.leaving is None else block.leaving
        if block.entering is not None:
            b = b + maps.matvec(block.entering)
        flip = (lambda a: a[::-1]) if system.backward else (lambda a: a)
        maps, b = jax.tree.map(flip, (maps, b))

        def step(total, t):
            total = compose(total[0], t[0]), t[0].matvec(total[1]) + t[1]
            return total, total

        first = jax.tree.map(lambda a: a[0], (maps, b))
        rest = jax.tree.map(lambda a: a[1:], (maps, b))
        _, later = lax.scan(step, first, rest)
        full, offsets = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
        after = full.matvec(state) + offsets
        shown = flip(jnp.concatenate([state[None], after[:-1]]))
        if block.entering is not None:
            shown = shown + block.entering
        return after[-1], *system.collect(0, shown, after[-1])

    def complexity(self, n):
        return Complexity(steps=n, matrix_products=n, vector_products=2 * n, operators=2 * n)


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


SOLVERS = [
    pb.Sweep(2),
    pb.Blelloch(),
    pb.Blelloch(1, scaled=True),
    pb.Associative(),
    pb.Chunked(2),
    pb.Chunked(2, scaled=True, inner=pb.Associative()),
    TwoLevel(),
    Prefixes(),
]
KINDS = [Scalar, Plain, Held]


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def uniform(make, solver, factors, g):
    return pb.solve(pb.Uniform(make(factors), g), solver)


def dense(factors):
    return Scalar(factors, H).as_dense()


@pytest.mark.parametrize("kind", KINDS)
def test_the_algebra_takes_it(kind):
    a, b = kind(draw(0, N), H), kind(draw(1, N), H)
    dense, diagonal = Dense(draw(2, H, H)), Diagonal(draw(3, H))
    others = [dense, diagonal, BlockDiagonal(draw(4, 1, H, H))]
    more = [b, to_scaled(dense), Plain(draw(5), H), a]

    @jit_once
    def products(a, others):
        made = [compose(*pair) for other in others for pair in ((a, other), (other, a))]
        return made, [op.as_dense() for op in (a, *others, *made)]

    made, (first, *matrices) = products(a, [*others, *more])
    matrices, got = matrices[:7], matrices[7:]
    want = [x for m in matrices for x in (m @ first, first @ m)]
    close(got, want)
    # What holds it keeps it small.
    small = [Dense, Diagonal, BlockDiagonal] if kind is Held else [Dense] * 3
    assert [type(op) for op in made[:6:2]] == [type(op) for op in made[1:6:2]] == small
    own = kind if kind.closed else Dense
    assert {type(op) for op in (made[6], made[7], for_trees(a))} == {own}
    assert join(a, b) == Structure(own)
    assert compose(a, Identity(H)) is a and compose(Identity(H), a) is a
    for other in (*others, *more):
        assert compose_cost(a, other).flops >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_it_changes_its_structure(kind):
    @jit_once
    def changed(a, diagonal):
        ones = stack([a.take(0), a.take(1)])
        both = stack([a.take(0), diagonal])
        return to_scaled(a), to_structure(a, Dense), ones, both, both.as_dense()

    a, diagonal = kind(draw(0, N), H), Diagonal(draw(3, H))
    scaled, dense, ones, both, matrices = changed(a, diagonal)
    assert type(scaled.mantissa) is type(both) is (Diagonal if kind is Held else Dense)
    close((scaled.as_dense(), dense.matrix), (a.as_dense(), a.as_dense()))
    close(
        (ones.factor, matrices), (a.factor[:2], jnp.stack([dense.matrix[0], diagonal.as_dense()]))
    )


def test_a_closed_structure_says_how():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True, eq=False)
    class Silent(Scalar):
        after = Operator.after

    a = Silent(jnp.ones(()), H)
    with pytest.raises(NotImplementedError, match=r"Silent is closed=True, and wants .* after"):
        compose(a, a)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_every_solver_takes_it(solver, kind):
    """Also its gradients, and those of a gradient."""
    factors, g, w = draw(0, N), draw(1, N + 1, H), draw(2, N + 1, H)

    def everything(make, solver, factors, g):
        loss = lambda f, g: jnp.sum(w * uniform(make, solver, f, g) ** 2)  # noqa: E731
        slopes = jax.grad(loss, (0, 1))
        again = jax.grad(lambda f, g: sum(jnp.sum(s**2) for s in slopes(f, g)), (0, 1))
        return uniform(make, solver, factors, g), slopes(factors, g), again(factors, g)

    @jit_once
    def both(factors, g):
        got = everything(lambda f: kind(f, H), solver, factors, g)
        return got, everything(lambda f: Dense(dense(f)), pb.Sweep(), factors, g)

    for got, want in zip(*both(factors, g), strict=True):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            scale = float(jnp.abs(b).max())
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-5)


@pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_take_it(kind):
    factors, g = draw(0, N), draw(1, N + 1, H)
    solver = pb.Pallas("chunked", chunk=3, interpret=True)
    got = uniform(lambda f: kind(f, H), solver, factors, g)
    close(got, uniform(lambda f: Dense(dense(f)), pb.Sweep(), factors, g))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "solver",
    [
        *(pb.Sweep(), pb.Blelloch(), pb.Blelloch(scaled=True), pb.Planned()),
        *(pb.Planned(4, machine=pb.planner.FLOPS), TwoLevel()),
    ],
    ids=str,
)
def test_ragged_systems_take_it(solver, kind):
    factors = draw(0, 3)
    layers = [Dense(draw(1, 2, H)), Dense(draw(2, H, H)), Dense(draw(3, H, 4))]
    g = [None, draw(4, H), *[None] * 4, draw(5, 4)]

    def lambdas(factors, solver, of=lambda a: a):
        own = [of(kind(f, H)) for f in factors]
        ops = [layers[0], own[0], own[1], layers[1], own[2], layers[2]]
        return pb.solve(pb.Ragged(ops, g), solver)

    def derivatives(solver, of=lambda a: a):
        loss = lambda f: sum(jnp.sum(v**2) for v in lambdas(f, solver, of))  # noqa: E731
        return lambdas(factors, solver, of), jax.grad(loss)(factors)

    got = jit_once(lambda: derivatives(solver))()
    want = jit_once(lambda: derivatives(pb.Sweep(), lambda a: Dense(a.as_dense())))()
    close(got, want)


@pytest.mark.parametrize(
    "jacobian",
    [
        lambda c, x, new: Scalar(jnp.asarray(0.5, c.dtype), H),  # a literal, which all steps share
        lambda c, x, new: Scalar(0.5 + 0 * x[0], H),
    ],
    ids=["shared", "stacked"],
)
@pytest.mark.parametrize("solver", [None, pb.Blelloch(), pb.Chunked(2, scaled=True)], ids=str)
def test_a_scan_takes_it_as_its_jacobian(solver, jacobian):
    step = lambda c, x: (0.5 * c + jnp.sin(x), c * x)  # noqa: E731
    xs, c = draw(0, N, H), draw(1, H)

    def loss(scan, c, xs):
        last, ys = scan(step, c, xs)
        return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))

    ours = functools.partial(pb.scan, solver=solver, jacobian=jacobian)
    got, want = (
        jit_once(jax.grad(functools.partial(loss, scan), (0, 1)))(c, xs)
        for scan in (ours, lax.scan)
    )
    close(got, want)


def first_and_second(loss, *args):
    slopes = jax.grad(loss, tuple(range(len(args))))

    def curvature(*args):
        leaves = jax.tree.leaves(slopes(*args))
        return sum(jnp.sum(s**2) for s in leaves)

    return jit_once(lambda *args: (slopes(*args), jax.grad(curvature)(*args)))(*args)


@pytest.mark.parametrize("solver", [TwoLevel(), TwoLevel(3), Prefixes()], ids=str)
def test_a_scan_takes_the_solver(solver):
    w, c, xs = draw(0, H, H), draw(1, H), draw(2, N, H)

    def loss(scan, w, c, xs):
        last, ys = scan(lambda c, x: (jnp.tanh(w @ c + x), c**2), c, xs)
        return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))

    ours = functools.partial(pb.scan, solver=solver)
    close(*(first_and_second(functools.partial(loss, scan), w, c, xs) for scan in (ours, lax.scan)))


def test_a_chain_takes_the_solver():
    layers = [Linear(4), jnp.tanh, Linear(2)]
    params = init(layers, jax.random.key(0), (3,))
    x = draw(0, 5, 3)

    def loss(solver, params):
        return jnp.sum(pb.chain(layers, params, x, solver=solver) ** 2)

    close(*(first_and_second(functools.partial(loss, s), params) for s in (TwoLevel(), pb.Sweep())))


def test_what_has_no_products_is_for_solvers_that_need_none():
    linear = jax.linearize(jnp.sin, jnp.ones(H))[1]
    free = MatrixFree(linear, False, jnp.zeros(H))
    system = pb.Uniform(free.broadcast(N), jnp.ones((N + 1, H)))
    close(pb.solve(system, TwoLevel()), pb.solve(system))
    with pytest.raises(NotImplementedError, match=r"Prefixes cannot take a uniform system of Matr"):
        pb.solve(system, Prefixes())
    for solver in (Prefixes(), pb.Chunked()):
        with pytest.raises(NotImplementedError, match="takes uniform systems only"):
            pb.solve(pb.Ragged([free], [jnp.ones(H)] * 2), solver)


def test_the_bases_are_public():
    assert issubclass(pb.Blelloch, TreeSolver) and issubclass(TreeSolver, Solver)
    assert all(inner is None for inner in (pb.Sweep().inner, pb.Blelloch().inner, TwoLevel().inner))
    with pytest.raises(NotImplementedError, match="Prefixes takes uniform systems only"):
        Prefixes().run_ragged(None)


def test_every_pair_of_neighbours_is_a_product():
    """A tree over stacks of it is a tree of its own numbers."""
    ops = Scalar(draw(0, N), H)
    prefixes = lax.associative_scan(compose, ops)
    close(prefixes.factor, np.cumprod(ops.factor))
    sizes = [a.size for a in jax.tree.leaves(jax.eval_shape(pb.Blelloch().form, ops))]
    assert sizes == [N]
