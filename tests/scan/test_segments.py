"""Lengths and resets of `pb.scan`, against a Python loop over the entries of the batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parscan_bp as pb

STEPS, FEATURES = 6, 2
RNG = np.random.default_rng(3)
W = jnp.asarray(0.5 * RNG.normal(size=(FEATURES, FEATURES)))


def _step(w, carry, x):
    h, count = carry
    h = jnp.tanh(h @ w + jnp.log(x[0]) * x[1])  # of zero, and of NaN, it is NaN
    return (h, count + 1), (h * x[1], count)


def _problem(batch):
    """Inputs, start, state after a reset, lengths and resets for these batch axes."""
    rng = np.random.default_rng(4)
    xs = rng.uniform(0.5, 2, size=(2, STEPS, *batch, FEATURES))
    init = rng.normal(size=(2, *batch, FEATURES))
    lengths = rng.integers(0, STEPS + 1, size=batch)
    if batch:
        lengths.flat[:2] = 0, STEPS
    return xs, init, np.asarray(lengths), rng.random((STEPS, *batch)) < 0.3


def _by_hand(w, h, state, xs, lengths, reset, reverse):
    """Every entry by itself, its own steps alone."""
    batch = np.shape(lengths)
    last, count = np.empty(batch, object), np.zeros(batch, int)
    ys = np.full((STEPS, *batch), None, object)
    counts = np.zeros((STEPS, *batch), int)
    for entry in np.ndindex(batch):
        carry = (h[entry], 0)
        for t in list(range(int(lengths[entry])))[:: -1 if reverse else 1]:
            carry = (state[entry], 0) if reset[(t, *entry)] else carry
            carry, y = _step(w, carry, tuple(x[(t, *entry)] for x in xs))
            ys[(t, *entry)], counts[(t, *entry)] = y
        last[entry], count[entry] = carry
    stacked = lambda v: jnp.stack(  # noqa: E731
        [jnp.zeros(FEATURES) if u is None else u for u in v.ravel()]
    ).reshape(*v.shape, FEATURES)
    return (stacked(last), count), (stacked(ys), counts)


def _modes(f, *args):
    """Values and derivatives of floats: the gradient, its tangent, and a tangent of the values."""

    def loss(*args):
        (h, _), (ys, _) = f(*args)
        return jnp.sum(h * jnp.cos(h)) + jnp.sum(ys * jnp.sin(1 + ys))

    every = tuple(range(len(args)))
    tangents = jax.tree.map(jnp.cos, args)
    return f(*args), jax.jvp(jax.grad(loss, every), args, tangents), jax.jvp(loss, args, tangents)


def _poisoned(xs, lengths):
    padding = np.arange(STEPS).reshape(-1, *[1] * np.ndim(lengths)) >= lengths
    return tuple(np.where(padding[..., None], np.nan, x) for x in xs)


@pytest.mark.sampled
@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=str)
@pytest.mark.parametrize("batch, reverse", [((), False), ((3,), False), ((2, 2), True)])
def test_values_and_derivatives(batch, reverse, solver):
    xs, init, lengths, reset = _problem(batch)
    count = np.zeros(batch, int)

    def ours(w, h, state, xs):
        step = functools.partial(_step, w)
        how = {"reset": (reset, (state, count)), "seq_lengths": lengths, "reverse": reverse}
        return pb.scan(step, (h, count), tuple(xs), solver=solver, **how)

    def theirs(w, h, state, xs):
        return _by_hand(w, h, state, xs, lengths, reset, reverse)

    def run(w, h, state, xs, poisoned):
        return _modes(ours, w, h, state, poisoned), _modes(theirs, w, h, state, xs)

    given = jnp.asarray(xs), jnp.asarray(np.stack(_poisoned(xs, lengths)))
    got, want = jax.jit(run)(W, *map(jnp.asarray, init), *given)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_a_reset_begins_with_init():
    reset = np.array([False, True, False])
    got = jax.grad(lambda h, xs: pb.scan(lambda c, x: (c * x, c), h, xs, reset=reset)[0])
    assert float(got(2.0, jnp.asarray([5.0, 3.0, 7.0]))) == 21.0


def test_a_time_that_all_entries_share():
    step = lambda h, x: (h + x["v"] * x["t"], h)  # noqa: E731
    xs = {"t": jnp.arange(3.0), "v": jnp.ones((3, 2))}
    last, ys = pb.scan(step, jnp.zeros(2), xs, seq_lengths=np.array([3, 2]))
    assert last.tolist() == [3.0, 1.0] and ys.tolist() == [[0, 0], [0, 0], [1, 0]]


def test_without_inputs():
    last, ys = pb.scan(
        lambda h, _: (2 * h, h), jnp.ones(3), None, 4, seq_lengths=jnp.asarray([0, 1, 4])
    )
    assert last.tolist() == [1, 2, 16] and ys.sum(0).tolist() == [0, 1, 15]


def test_a_step_is_traced_once():
    count = []

    def step(h, x):
        count.append(0)
        return jnp.tanh(h + x), None

    for lengths in ([1, 2], [2, 3]):
        pb.scan(step, jnp.ones(2), jnp.ones((3, 2)), seq_lengths=np.array(lengths))
    assert len(count) <= 2  # and of its shapes, once


def test_explained():
    told = pb.explain(
        lambda h, x: (jnp.tanh(h @ W + x), h),
        jnp.zeros((3, 2)),
        jnp.ones((5, 3, 2)),
        solver=pb.Sweep(),
        seq_lengths=np.array([1, 2, 3]),
    )
    assert told.batch_axes == ((0,),) and told.structure == "block"


INIT, XS = jnp.zeros((3, 2)), jnp.zeros((5, 3, 2))
FLAGS = np.zeros((5, 3), bool)


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"reset": "first"}, TypeError, "reset: got 'first', of type str; an array is wanted"),
        ({"seq_lengths": "all"}, TypeError, "seq_lengths: got 'all'"),
        ({"reset": (FLAGS, "zero")}, TypeError, "reset: the state: got 'zero'"),
        ({"reset": FLAGS[:4]}, ValueError, r"reset: got bool\[4, 3\]; bool\[5, ...\] is wanted"),
        ({"reset": FLAGS.astype(int)}, ValueError, r"reset: got int\d+\[5, 3\]; bool\[5, ...\]"),
        ({"reset": (FLAGS,)}, ValueError, "reset: got a tuple of 1; booleans, or a pair"),
        (
            {"reset": (FLAGS, 1.0)},
            ValueError,
            r"reset: got \(booleans, state\) with a",
        ),
        ({"reset": np.zeros((5, 2), bool)}, ValueError, r"reset: a value of shape \[3, 2\] in the"),
        ({"seq_lengths": [1.0] * 3}, TypeError, r"seq_lengths: got float\d+\[3\]; integers are"),
        ({"seq_lengths": [1, 2]}, ValueError, r"seq_lengths: a value of shape \[3, 2\] in the"),
        ({"seq_lengths": [1, 2, 6]}, ValueError, "seq_lengths: got 6; 0 to 5, the steps"),
        ({"seq_lengths": [1, -2, 3]}, ValueError, "seq_lengths: got -2; 0 to 5, the steps"),
        (
            {"seq_lengths": [1, 2, 3], "reset": FLAGS[:, :2]},
            ValueError,
            r"reset: got bool\[5, 2\]; with seq_lengths of \[3\] bool\[5, 3\] is wanted",
        ),
        (
            {"seq_lengths": [1, 2, 3], "f": lambda h, x: (h, x.sum(0))},
            ValueError,
            r"seq_lengths: a value of shape \[2\] in the carry, inputs or outputs does not begin",
        ),
        ({"seq_lengths": [1, 2, 3], "xs": None}, ValueError, "length: got None; without xs"),
    ],
)
def test_what_does_not_fit(options, error, match):
    call = {"f": lambda h, x: (jnp.tanh(h + x), h), "init": INIT, "xs": XS, **options}
    with pytest.raises(error, match=match):
        pb.scan(**call)
