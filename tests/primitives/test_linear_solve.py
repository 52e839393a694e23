"""The linear solve as an operation: its derivatives of each kind, against those of an inverse."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.primitives.linear_solve import LinearSolve
from parscan_bp.primitives.zeros import empty_of, instantiated, is_zero, tied_zeros
from tests.family import assert_derivatives_close, jit_once, together

FLOAT = jnp.result_type(float)
ROUNDING = 1e-10 if FLOAT == jnp.float64 else 2e-4
SIZE = 4
MATRIX = jnp.eye(SIZE, dtype=FLOAT) + 0.1 * jax.random.normal(
    jax.random.key(0), (SIZE, SIZE), FLOAT
)
RIGHT = {
    "v": jax.random.normal(jax.random.key(1), (SIZE,), FLOAT),
    "w": jax.random.normal(jax.random.key(2), (2, SIZE), FLOAT),
}


def _solution(through):
    """v, w -> A^-1 v, A^-1 w, with A = sin(residual)."""

    def matvec(a, u):
        rows = jax.tree.map(lambda v: v @ jnp.sin(a).T, u)
        tie = empty_of(u) * empty_of(a)
        return jax.tree.map(lambda row: row + tied_zeros(tie, row), rows)

    def forward(a, b):
        return jax.tree.map(lambda v: v @ jnp.linalg.inv(jnp.sin(a)).T, b)

    def backward(a, ct):
        return jax.tree.map(lambda v: v @ jnp.linalg.inv(jnp.sin(a)), ct)

    return LinearSolve(matvec, forward, backward, through)


def _inverse(a, b):
    return jax.tree.map(lambda v: v @ jnp.linalg.inv(jnp.sin(a)).T, b)


def _loss(solve):
    return lambda a, b: sum(jnp.sum(jnp.cos(v)) for v in jax.tree.leaves(solve(a, b)))


def _hvp(solve):
    directions = (jnp.cos(MATRIX), jax.tree.map(jnp.cos, RIGHT))
    return lambda a, b: jax.jvp(jax.grad(_loss(solve), (0, 1)), (a, b), directions)[1]


STACK = jnp.stack([MATRIX, 1.1 * MATRIX, 0.9 * MATRIX])
ROWS = jax.tree.map(lambda v: jnp.stack([v, 2 * v, 3 * v]), RIGHT)
SOME = {"v": ROWS["v"], "w": RIGHT["w"]}
MAPPED = {
    "matrix": ((0, None), (STACK, RIGHT)),
    "right-hand side": ((None, 0), (MATRIX, ROWS)),
    "a part of it": ((None, {"v": 0, "w": None}), (MATRIX, SOME)),
    "both, another axis": ((2, 0), (jnp.moveaxis(STACK, 0, 2), ROWS)),
}
DERIVATIVES = (
    {
        "values": lambda solve: solve(MATRIX, RIGHT),
        "gradient": lambda solve: jax.grad(_loss(solve), (0, 1))(MATRIX, RIGHT),
        "gradient by b": lambda solve: jax.grad(_loss(solve), 1)(MATRIX, RIGHT),
        "tangent": lambda solve: jax.jvp(_loss(solve), (MATRIX, RIGHT), (MATRIX, RIGHT)),
        "hvp": lambda solve: _hvp(solve)(MATRIX, RIGHT),
        "gradient of hvp": lambda solve: jax.grad(
            lambda a: sum(jnp.sum(v) for v in jax.tree.leaves(_hvp(solve)(a, RIGHT)))
        )(MATRIX),
        "gradient of gradient": lambda solve: jax.grad(
            lambda a: jnp.sum(jax.grad(_loss(solve))(a, RIGHT) ** 2)
        )(MATRIX),
        "hessian": lambda solve: jax.hessian(_loss(solve))(MATRIX, RIGHT),
        "third": lambda solve: jax.jvp(lambda a: _hvp(solve)(a, RIGHT), (MATRIX,), (MATRIX,)),
        "transpose of transpose": lambda solve: jax.linear_transpose(
            lambda ct: jax.linear_transpose(functools.partial(solve, MATRIX), RIGHT)(ct)[0], RIGHT
        )(RIGHT)[0],
    }
    | {
        f"{name}, mapped by {by}": functools.partial(
            lambda f, axes, values, solve: jax.vmap(f(solve), axes)(*values), f, *MAPPED[by]
        )
        for by in MAPPED
        for name, f in {
            "values": lambda solve: solve,
            "gradient": lambda solve: jax.grad(_loss(solve), (0, 1)),
            "hvp": _hvp,
        }.items()
    }
    | {
        f"gradient through a map by {by}": functools.partial(
            lambda axes, values, solve: jax.grad(
                lambda *at: jnp.sum(jax.vmap(_loss(solve), axes)(*at)), (0, 1)
            )(*values),
            *MAPPED[by],
        )
        for by in MAPPED
    }
)


def _by_both(derive, *solves):
    """A program of a derivative of each, and its arguments."""
    return lambda: [derive(solve) for solve in solves], ()


@pytest.mark.sampled
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives(derivative, through, request):
    def case(derivative, through):
        return _by_both(DERIVATIVES[derivative], _solution(through), _inverse)

    got, want = together(request, case)
    assert_derivatives_close(got, want, ROUNDING, mode=derivative)


def test_the_right_hand_side_alone_is_linear():
    """No product with the matrix is made where only b moves."""
    solve = _solution(through=True)
    program = jax.make_jaxpr(lambda t: jax.jvp(functools.partial(solve, MATRIX), (RIGHT,), (t,)))
    assert str(program(RIGHT)).count("linear_solve[") == 2


@pytest.mark.parametrize("through", [False, True])
def test_a_product_with_the_hessian(through):
    program = str(jax.make_jaxpr(_hvp(_solution(through)))(MATRIX, RIGHT))
    assert ("pushforward[" in program) == through
    assert ("linear_solve[" in program) != through


CELL = pb.cells.LSTM()
PARAMS = CELL.init(jax.random.key(0), 3, 20, FLOAT)
XS = jax.random.normal(jax.random.key(1), (500, 16, 3), FLOAT)


def _scan_hvp(scan, **options):
    def loss(params):
        carry = CELL.initial_carry((16,), 20, FLOAT)
        return (scan(functools.partial(CELL, params), carry, XS, **options)[1] ** 2).mean()

    return lambda params: jax.jvp(jax.grad(loss), (params,), (params,))[1]


@pytest.mark.reads_compiled
def test_a_product_with_the_hessian_keeps_little():
    """Carries, outputs and their tangents, where `lax.scan` keeps all that was computed."""
    got, want = (
        jax.jit(_scan_hvp(scan)).lower(PARAMS).compile().memory_analysis().temp_size_in_bytes
        for scan in (pb.scan, lax.scan)
    )
    assert got < 0.6 * want


@pytest.mark.parametrize("solver", [pb.Associative(), pb.Blelloch(), pb.Chunked(chunks=3)])
def test_trees_solve_again(solver):
    """The derivative of a tree of products would be two trees more."""
    program = str(jax.make_jaxpr(_scan_hvp(pb.scan, solver=solver))(PARAMS))
    assert "pushforward" not in program


def test_a_gradient_through_it_is_solved():
    hvp = _scan_hvp(pb.scan)
    gradient = jax.grad(lambda p: sum(jnp.sum(v) for v in jax.tree.leaves(hvp(p))))
    assert "pushforward" not in str(jax.make_jaxpr(gradient)(PARAMS))


def test_a_jacobian_that_is_given_is_not_differentiated():
    """It may hold at first order only: here it stops the gradient."""

    def jacobian(h, x, new):
        return pb.operators.Diagonal(lax.stop_gradient(1 - new * new) * 0.5)

    def hvp(scan, xs, t):
        step = lambda h, x: (jnp.tanh(0.5 * h + x), h)  # noqa: E731
        loss = lambda xs: jnp.sum(scan(step, xs[0], xs)[0] ** 2)  # noqa: E731
        return jax.jvp(jax.grad(loss), (xs,), (t,))[1]

    scans = functools.partial(pb.scan, solver=pb.Sweep(), jacobian=jacobian), lax.scan
    got, want = jit_once(lambda *at: [hvp(scan, *at) for scan in scans])(XS[:9], XS[9:18])
    assert_derivatives_close(got, want, ROUNDING)


def _inverted(a):
    return [jnp.linalg.inv(jnp.sin(a))]


def _hinted(solve, hints=_inverted):
    """The solution that is given the inverse."""
    solution = LinearSolve(
        solve.matvec,
        lambda a, b, h: jax.tree.map(lambda v: v @ h[0].T, b),
        lambda a, ct, h: jax.tree.map(lambda v: v @ h[0], ct),
        solve.through,
    )
    return lambda a, b: solution(a, b, hints(a))


@pytest.mark.sampled
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize(
    "derivative", ["gradient", "hessian", "gradient of hvp", "third", "hvp, mapped by matrix"]
)
def test_derivatives_with_hints(derivative, through, request):
    def case(derivative, through):
        return _by_both(DERIVATIVES[derivative], _hinted(_solution(through)), _inverse)

    got, want = together(request, case)
    assert_derivatives_close(got, want, ROUNDING, mode=derivative)


@pytest.mark.parametrize("by", [None, *MAPPED])
def test_hints_are_used(by):
    """Of values and of gradients by b: with twice the inverse they are twice as large."""
    twice = _hinted(_solution(False), lambda a: [2 * _inverted(a)[0]])
    axes, at = ((None, None), (MATRIX, RIGHT)) if by is None else MAPPED[by]

    def both(solve):
        total = lambda a, b: sum(jnp.sum(v) for v in jax.tree.leaves(solve(a, b)))  # noqa: E731
        evaluate = lambda a, b: (solve(a, b), jax.grad(total, 1)(a, b))  # noqa: E731
        return evaluate if by is None else jax.vmap(evaluate, axes)

    got, want = jit_once(lambda *at: [both(solve)(*at) for solve in (twice, _inverse)])(*at)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, 2 * b, rtol=1e-4, atol=1e-4)


def _frugal(seen):
    """The solution that notes which leaves of b it is told to be zero."""
    solve = _solution(True)

    def noting(run):
        def noted(a, b):
            seen.append({name: is_zero(v) for name, v in b.items()})
            return run(a, instantiated(b))

        return noted

    forward, backward = noting(solve.forward), noting(solve.backward)
    return LinearSolve(solve.matvec, forward, backward, True, sees_zeros=True)


def test_a_solution_is_told_what_nothing_reads():
    seen = []
    solve = _frugal(seen)
    read = lambda solve, b: jnp.sum(jnp.cos(solve(MATRIX, b)["v"]))  # noqa: E731
    got = jax.grad(functools.partial(read, solve))(RIGHT)
    assert seen[-1] == {"v": False, "w": True}
    assert_derivatives_close(got, jax.grad(functools.partial(read, _inverse))(RIGHT), ROUNDING)


DIRECTION = jax.tree.map(jnp.sin, RIGHT)
READ = {
    "gradient": lambda f: jax.grad(f, (0, 1))(MATRIX, RIGHT),
    "hvp": lambda f: jax.jvp(jax.grad(f, (0, 1)), (MATRIX, RIGHT), (jnp.cos(MATRIX), DIRECTION))[1],
    "hessian": lambda f: jax.hessian(f, (0, 1))(MATRIX, RIGHT),
    "gradient of gradient": lambda f: jax.grad(
        lambda a: jnp.sum(jax.grad(f, 1)(a, RIGHT)["w"] ** 2) + jnp.sum(jax.grad(f)(a, RIGHT))
    )(MATRIX),
    "mapped": lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None))(STACK, RIGHT),
    "third": lambda f: jax.jvp(
        lambda b: jax.jvp(jax.grad(f, (0, 1)), (MATRIX, b), (MATRIX, DIRECTION))[1],
        (RIGHT,),
        (DIRECTION,),
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("derivative", READ)
@pytest.mark.parametrize("leaf", ["v", "w"])
def test_derivatives_of_what_is_read(derivative, leaf, request):
    def loss(leaf, solve):
        return lambda a, b: jnp.sum(jnp.cos(solve(a, {**b, "w": b["w"] * b["v"]})[leaf]))

    def case(derivative, leaf):
        derive = lambda solve: READ[derivative](loss(leaf, solve))  # noqa: E731
        return _by_both(derive, _frugal([]), _inverse)

    got, want = together(request, case)
    assert_derivatives_close(got, want, ROUNDING, mode=derivative)
