"""Exponents beside mantissas: exactness, and products far beyond the range of their dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operator_examples import DTYPES, Draw, assert_close
from operator_references import reference, wide

from bench.paper.products import power
from parscan_bp.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Product,
    Scaled,
    ScaledVector,
    Structure,
    compose,
    stack,
    to_scaled,
    to_structure,
)
from parscan_bp.operators.powers import ldexp, normalise
from tests.family import array

REAL = [dtype for dtype in [*DTYPES, "float16"] if not dtype.startswith("complex")]
DIAGONAL, DENSE, BLOCKS = Diagonal, Dense, BlockDiagonal


@pytest.mark.parametrize("dtype", REAL)
def test_ldexp_is_exact_over_the_whole_range(dtype):
    info = jnp.finfo(dtype)
    low, high = int(info.minexp), int(info.maxexp)
    powers = np.array([low, -1, 0, high - 1])
    x = array(np.ldexp(1.5, powers), dtype)
    for shift in (0, 1, -1, high - low - 1, low - high + 1, 10**6, -(10**6)):
        got = wide(by_powers(x, np.int32(shift)))
        total = powers + shift
        want = np.where(total >= high, np.inf, np.where(total < low, 0.0, np.nan))
        inside = np.isnan(want)
        np.testing.assert_array_equal(got[inside], np.ldexp(1.5, total[inside]))
        # Below the smallest normal number a backend may flush to zero or not.
        np.testing.assert_array_equal(got[total >= high], np.inf)
        assert (got[total < low] < float(info.tiny)).all()


@pytest.mark.parametrize("dtype", [*REAL, "complex64"])
def test_ldexp_leaves_non_finite_entries_and_zeros(dtype):
    x = array([np.inf, -np.inf, np.nan, 0.0], dtype)
    for shift in (-1000, -1, 0, 1, 1000):
        np.testing.assert_array_equal(wide(by_powers(x, np.int32(shift))), wide(x))


def test_ldexp_with_a_constant_exponent():
    """XLA multiplies neighbouring constants, and 2**240 is infinite: the factors are kept apart."""
    scale = jax.jit(lambda x: ldexp(x, jnp.int32(240)))
    assert float(scale(np.float32(2.0**-120))) == 2.0**120


def test_ldexp_differentiates():
    slope = jax.jit(jax.grad(lambda x, e: ldexp(x, e)))(np.float32(3.0), np.int32(70))
    assert float(slope) == 2.0**70


@pytest.mark.parametrize("dtype", [*REAL, "complex64"])
def test_normalise(dtype):
    draw = Draw(0, "complex64" if dtype == "complex64" else "float32")
    tiny, huge = float(jnp.finfo(dtype).tiny), float(jnp.finfo(dtype).max)
    sizes = np.asarray([[1.0], [tiny * 8], [huge / 8], [0.0]], jnp.result_type(float))
    x = jax.jit(lambda a: (a * sizes).astype(dtype))(draw(4, 5))
    mantissa, exponent = jax.jit(normalise)(x)
    parts = np.maximum(np.abs(wide(mantissa).real), np.abs(wide(mantissa).imag))
    assert (parts[:3] >= 0.5).all() and (parts[:3] < 1).all()
    assert exponent.dtype == jnp.int32 and exponent[3].tolist() == [0] * 5
    np.testing.assert_array_equal(wide(mantissa) * 2.0 ** wide(exponent), wide(x))


def test_subnormal_numbers_keep_their_bits_where_the_backend_does():
    x = array([3 * 2.0**-24, 2.0**-24, 2.0**-14], "float16")
    ones = np.ones(3, np.float16)
    mantissa, exponent, product = jax.jit(
        lambda x, v: (*normalise(x), Scaled.of(Diagonal(x)).matvec(v))
    )(x, ones)
    assert mantissa.tolist() == [0.75, 0.5, 0.5] and exponent.tolist() == [-22, -23, -13]
    assert product.tolist() == x.tolist()


def test_exponents_beyond_their_end_are_nan():
    x, exponent = array([1.0, -1.0, 0.0]), array([2**27, -(2**28), 2**28], "int32")
    np.testing.assert_array_equal(jax.jit(normalise)(x, exponent)[0], [np.nan, np.nan, 0.0])


@pytest.mark.parametrize("make", [DIAGONAL, DENSE, BLOCKS])
def test_non_finite_entries_pass_through(make):
    shape = {DIAGONAL: (4,), DENSE: (2, 2), BLOCKS: (1, 2, 2)}[make]
    x = np.asarray([np.nan, np.inf, 2.0**100, -np.inf], np.float32).reshape(shape)
    op = jax.jit(Scaled.of)(make(x))
    ((mantissa, _),) = op.mantissa.leaves()
    np.testing.assert_array_equal(np.ravel(mantissa), [np.nan, np.inf, 0.5, -np.inf])
    assert np.ravel(op.exponent).tolist() == [0, 0, 101, 0]
    np.testing.assert_array_equal(by_powers(mantissa, op.exponent), x)


def test_infinite_rows_stay_in_their_rows():
    def run(dense, diagonal, v):
        op = Scaled.of(dense)
        return op.matvec(v), compose(op, Scaled.of(diagonal))

    dense, diagonal = Dense(array([[np.inf, 1.0], [2.0, 3.0]])), Diagonal(array([1.0, 2.0]))
    out, square = jax.jit(run)(dense, diagonal, array([1.0, 1.0]))
    assert out.tolist() == [np.inf, 5.0]
    assert reference(square).tolist() == [[np.inf, 1.0], [4.0, 6.0]]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_zero_operators(dtype):
    def run(zeros, numbers, v):
        zero, big = Scaled.of(zeros), Scaled.of(numbers, exponent=10**6)
        return zero, (compose(zero, big), compose(big, zero)), zero.matvec(v)

    zeros, ones = Dense(array(np.zeros((3, 2, 2)), dtype)), array(np.ones(2), dtype)
    zero, products, product = jax.jit(run)(zeros, Dense(Draw(0, dtype)(3, 2, 2)), ones)
    assert not np.any(zero.exponent)
    for got in products:
        assert not np.any(got.exponent) and not reference(got).any()
    assert not wide(product).any()


def float32(*values):
    return array(values, "float32")


scaled, push, by_powers = jax.jit(Scaled.of), jax.jit(lambda op, v: op.matvec(v)), jax.jit(ldexp)


def test_matvec_overflows_only_if_the_result_does():
    # A sum that overflows on the way to a result in range.
    op = scaled(Dense(float32([0.5] * 4)), np.int32(-2))
    assert float(push(op, float32(*[2.0**127] * 4))[0]) == 2.0**126
    op = scaled(Dense(float32([0.5] * 4)), np.int32(-300))
    assert float(push(op, float32(*[2.0**127] * 4))[0]) == 0.0
    up = scaled(Diagonal(float32(0.5, -0.5)), np.int32(200))
    for v, want in (
        ([2.0**-100, 2.0**-100], [2.0**99, -(2.0**99)]),
        ([1.0, 1.0], [np.inf, -np.inf]),
        ([2.0**-110, np.inf], [2.0**89, -np.inf]),
    ):
        np.testing.assert_array_equal(push(up, float32(*v)), want)
    beyond = scaled(Diagonal(float32(0.5, 0.0)), np.int32(2**26))
    np.testing.assert_array_equal(push(beyond, float32(1.0, 1.0)), [np.inf, 0.0])
    beyond = scaled(Diagonal(float32(0.5, 0.0)), np.int32(-(2**26)))
    np.testing.assert_array_equal(push(beyond, float32(3e38, 3e38)), [0.0, 0.0])
    largest = push(scaled(Diagonal(float32(1.75)), np.int32(0)), float32(2.0**127))
    assert float(largest[0]) == 1.75 * 2.0**127


def random_chain(kind: str, n: int):
    """n operators of order 4 whose size alternates between 1e20 and 1e-20, or drifts."""
    rng = np.random.default_rng(0)
    sizes = {
        "alternating": np.where(np.arange(n) % 2, 1e-20, 1e20),
        "growing": np.full(n, 1e20),
        "shrinking": np.full(n, 1e-20),
    }[kind]
    return (rng.standard_normal((n, 4, 4)) * sizes[:, None, None]).astype(np.float32)


def exact_product(matrices):
    """The product of a chain as (matrix of norm 1, log2 of its norm), in double precision."""
    total, log = np.eye(matrices.shape[-1]), 0.0
    for matrix in matrices:
        total = wide(matrix) @ total
        norm = np.linalg.norm(total)
        total, log = total / norm, log + np.log2(norm)
    return total, log


def assert_product(op: Scaled, total, log):
    """A dense product against `exact_product`."""
    mantissa, exponent = wide(op.mantissa.matrix), np.asarray(op.exponent)
    assert np.isfinite(mantissa).all()
    got = np.ldexp(mantissa, exponent - exponent.max())
    norm = np.linalg.norm(got)
    assert abs(np.log2(norm) + int(exponent.max()) - log) < 1e-3
    np.testing.assert_allclose(got / norm, total, atol=1e-4)


@pytest.mark.parametrize("kind", ["alternating", "growing", "shrinking"])
def test_a_long_product_stays_finite(kind):
    matrices = random_chain(kind, 400)
    total, log = exact_product(matrices)

    def step(carry, matrix):
        return compose(carry, Dense(matrix)), None

    run = jax.jit(lambda first, rest: jax.lax.scan(step, Scaled.of(first), rest)[0])
    got = run(Dense(matrices[0]), matrices[1:])
    assert_product(got, total, log)
    # The norm itself is far outside float32, except where growth and decay alternate.
    assert abs(log) > 20_000 or kind == "alternating"


def test_a_tree_of_products_stays_finite():
    """Inside a tree the partial products overflow even if the whole does not."""
    halves = random_chain("growing", 16), random_chain("shrinking", 16)
    matrices = np.concatenate(halves)
    total, log = exact_product(matrices)
    run = lambda op: jax.lax.associative_scan(compose, Scaled.of(op)).take(-1)  # noqa: E731
    last = jax.jit(run)(Dense(matrices))
    assert_product(last, total, log)


def test_product_factors_are_scaled_before_they_are_multiplied():
    big, small = float32(1e30, 1e30), float32([1e-30, 0.0], [0.0, 1e-30])
    factors = [Dense(array(np.stack([big, big]))), Diagonal(big), Dense(small)]
    run = lambda factors: (to_scaled(Product(factors)), Product(factors[:2]).as_dense())  # noqa: E731
    op, beyond = jax.jit(run)(factors)
    np.testing.assert_allclose(reference(op), np.full((2, 2), 1e30), rtol=1e-6)
    assert np.isinf(np.asarray(beyond)).all()


def test_scaled_vectors_carry_a_long_recurrence():
    """lambda <- A lambda + g with values far outside float32, against double precision."""
    matrices = np.concatenate([random_chain("growing", 20), random_chain("shrinking", 20)])
    g = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32)

    def step(carry, t):
        matrix, g = t
        moved = Scaled.of(Dense(matrix)).matvec_scaled(carry)
        new = moved.add(ScaledVector.of(g))
        return new, new

    run = jax.jit(lambda start, ts: jax.lax.scan(step, ScaledVector.of(start), ts)[1])
    out = run(np.zeros(4, np.float32), (matrices, g))
    mantissas, exponents = np.asarray(out.mantissa), np.asarray(out.exponent)
    want, log = np.zeros(4), 0
    for t in range(40):
        # want 2**log, kept apart: the recurrence reaches 1e400.
        want = wide(matrices[t]) @ want + np.ldexp(wide(g[t]), -log)
        shift = int(np.frexp(np.abs(want).max())[1])
        want, log = np.ldexp(want, -shift), log + shift
        got = np.ldexp(wide(mantissas[t]), exponents[t] - log)
        np.testing.assert_allclose(got, want, atol=1e-4)
    assert exponents.max() > 1000


def test_adding_scaled_vectors():
    def vector(numbers, exponent=0):
        return jax.jit(ScaledVector.of)(array(numbers), array(exponent, "int32"))

    add, value = jax.jit(ScaledVector.add), jax.jit(ScaledVector.value)
    one, tiny, zero = vector([1.0, -3.0]), vector([1.0, 1.0], -400), vector([0.0, 0.0])
    np.testing.assert_array_equal(value(add(one, tiny)), [1.0, -3.0])
    for got in (add(zero, tiny), add(tiny, zero)):
        assert got.exponent.tolist() == tiny.exponent.tolist()
        np.testing.assert_array_equal(got.mantissa, tiny.mantissa)
    assert not np.any(add(zero, zero).exponent)
    opposite = ScaledVector(array(-np.asarray(tiny.mantissa)), tiny.exponent)
    assert not np.any(add(tiny, opposite).exponent)
    far = vector([1.0, 1.0, 1.0], [10**6, 0, -(10**6)])
    np.testing.assert_array_equal(value(far), [np.inf, 1.0, 0.0])
    total = add(far, far)
    assert (np.asarray(total.exponent) - np.asarray(far.exponent)).tolist() == [1, 1, 1]
    broken = add(vector([np.nan, 1.0]), one)
    np.testing.assert_array_equal(value(broken), [np.nan, -2.0])


@pytest.mark.parametrize("make", [DIAGONAL, DENSE, BLOCKS])
def test_an_entry_is_kept_whatever_the_size_of_the_others(make):
    """diag(2, 1) to the power of 2000, of which one exponent for each map keeps 2**2000 alone."""
    diagonal = array([2.0, 1.0])
    op = {
        DIAGONAL: Diagonal(diagonal),
        DENSE: Dense(array(np.diag([2.0, 1.0]))),
        BLOCKS: BlockDiagonal(array(np.diag([2.0, 1.0])[None])),
    }[make]

    @jax.jit
    def run(op, one, small, start):
        got = power(Scaled.of(op), 2000)
        return got.matvec(one), got.matvec(small), got.matvec_scaled(start).value()

    start = ScaledVector(array([0.5, 0.5]), array([-1999, 1], "int32"))
    one, small, moved = run(op, array([0.0, 1.0]), array([2.0**-100, 1.0]), start)
    assert one.tolist() == [0.0, 1.0]
    assert small.tolist() == [np.inf, 1.0]
    assert moved.tolist() == [1.0, 1.0]


def test_scaled_differentiates_as_if_it_were_plain():
    draw = Draw(0, "float32")
    a, b, v, w = draw(3, 3), draw(3), draw(3), draw(3)

    def loss(wrap, a, b, v):
        return jnp.vdot(w, compose(wrap(Dense(a)), wrap(Diagonal(b))).matvec(v))

    def gradients(*args):
        of = lambda wrap: jax.grad(functools.partial(loss, wrap), argnums=(0, 1, 2))(*args)  # noqa: E731
        return of(Scaled.of), of(lambda op: op)

    for got, want in zip(*jax.jit(gradients)(a, b, v), strict=True):
        assert_close(got, wide(want), "float32", terms=9)


def test_exponents_of_many_steps_add_up():
    """10**5 products of 2**120 and as many of 2**-120."""

    @jax.jit
    def run(up, down, v):
        up, down = Scaled.of(Diagonal(up)), Scaled.of(Diagonal(down))
        return compose(power(up, 10**5), power(down, 10**5)).matvec(v)

    sizes = [2.0**120, 2.0**-120]
    assert run(float32(*sizes), float32(*sizes[::-1]), float32(3.0, 5.0)).tolist() == [3.0, 5.0]


def random_maps(draw):
    """A stack of maps, an entry of which is zero, and a map."""
    several = np.array(draw(2, 3, 3))
    several[:, 0, 1] = 0.0
    return several, draw(3, 3)


@pytest.mark.parametrize("mode", ["jvp", "grad", "grad-grad", "vmapped jvp"])
def test_scaled_products_have_every_derivative(mode):
    """Those of plain products, in the direction of an entry that is zero, too."""
    draw = Draw(0, "float32")
    args = (*random_maps(draw), draw(3))
    directions = (draw(2, 3, 3), draw(3, 3), draw(3))

    def loss(wrap, a, b, v):
        return jnp.sum(compose(wrap(Dense(a)), wrap(Dense(b))).matvec(v) ** 2)

    def derivative(wrap, args, directions):
        f = functools.partial(loss, wrap)
        push = lambda *args: jax.jvp(f, args, directions)[1]  # noqa: E731
        if mode == "jvp":
            return push(*args)
        if mode == "grad":
            return jax.grad(f, (0, 1, 2))(*args)
        if mode == "grad-grad":
            return jax.grad(push, (0, 1, 2))(*args)
        batch = jax.tree.map(lambda x: jnp.stack([x, 2 * x], axis=1), args)
        mapped = jax.jit(jax.vmap(f, in_axes=1))
        return jax.jvp(mapped, batch, jax.tree.map(jnp.ones_like, batch))[1]

    both = lambda *given: [derivative(wrap, *given) for wrap in (Scaled.of, lambda op: op)]  # noqa: E731
    got, want = jax.jit(both)(args, directions)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_an_exponent_for_each_entry():
    @jax.jit
    def run(ops):
        op = stack([Scaled.of(op) for op in ops])
        return op, op.take(1), to_structure(op, Structure(Dense, 0, True)).transpose()

    op, one, dense = run([Diagonal(array([1.0, 2.0])), Diagonal(array([2.0**50, 0.0]))])
    assert op.exponent.tolist() == [[1, 2], [51, 0]]
    assert one.exponent.shape == (2,)
    assert dense.exponent.tolist()[0] == [[1, 0], [0, 2]]
    assert op.nbytes == 2 * op.mantissa.nbytes
