"""`Chunks`: finite, exact chunk by chunk, of any length, tree and batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parscan_bp.forward import Chunks, Recurrence
from tests.forward.systems import FAMILIES, drawn, sequential


def _recurrence(family, length, seed=0, dtype=jnp.float32):
    args = drawn(FAMILIES[family], seed, 1, length)
    params, h, us = jax.tree.map(lambda a: a[0].astype(dtype), args)
    step = functools.partial(FAMILIES[family].step, params)
    return Recurrence(step, h, us, length), sequential(FAMILIES[family].step, params, h, us)


def _chaotic(length):
    """x -> 3.9 x (1 - x), of which nothing is forgotten."""
    step = lambda x, u: 3.9 * x * (1 - x) + u  # noqa: E731
    us = jnp.zeros(length)
    recurrence = Recurrence(step, jnp.float32(0.3), us, length)
    return recurrence, sequential(lambda _, x, u: step(x, u), None, jnp.float32(0.3), us)


@pytest.mark.sampled
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 16, 17, 33, 100])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8, 1000])
def test_all_lengths(length, chunks):
    recurrence, want = _recurrence("gru", length)
    got = jax.jit(lambda: Chunks(chunks, rounds=chunks).evaluate(recurrence, 0.0))()
    np.testing.assert_allclose(got.states, want, rtol=0, atol=1e-5)
    assert got.converged and got.iterations <= chunks


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_chunk_k_is_exact_after_k_rounds(rounds):
    recurrence, want = _chaotic(128)
    got = Chunks(8, rounds=rounds).evaluate(recurrence, 0.0)
    exact = 16 * (rounds + 1)
    np.testing.assert_array_equal(got.states[:exact], want[:exact])
    assert np.abs(got.states[exact + 16 :] - want[exact + 16 :]).max() > 0.1
    assert not got.converged and got.iterations == rounds


def test_it_is_finite():
    recurrence, want = _chaotic(128)
    got = Chunks(8, rounds=100).evaluate(recurrence, 0.0)
    np.testing.assert_array_equal(got.states, want)
    assert got.converged and got.iterations == 7


def test_what_forgets_is_stepped_again_for_a_few_steps_only():
    """One round, of so many blocks: the states beyond are those of the first sweep, bit for bit."""
    recurrence = Recurrence(lambda x, u: 0.5 * x + u, jnp.float32(0), jnp.ones(512), 512)
    cold = Recurrence(recurrence.step, jnp.float32(0), jnp.ones(128), 128)
    got = Chunks(4).evaluate(recurrence, 0.0)
    alone = Chunks(1).evaluate(cold, 0.0)
    assert got.converged and got.iterations == 1
    np.testing.assert_array_equal(got.states[128 + 32 : 256], alone.states[32:])
    np.testing.assert_allclose(got.states[128 : 128 + 16], 2, rtol=1e-6)


def test_what_is_not_finite_never_coincides():
    step = lambda x, u: jnp.where(u > 40, jnp.nan, 0.5 * x)  # noqa: E731
    got = Chunks(4, rounds=9).evaluate(Recurrence(step, jnp.float32(1), jnp.arange(64.0), 64), 0.0)
    assert not got.converged and np.isnan(got.states[41:]).all()
    assert np.isfinite(got.states[:41]).all()


def test_trees_and_batches():
    """Several leaves, rows, inputs of several kinds; all rows of a chunk are stepped together."""

    def step(carry, u):
        h, c = carry["h"], carry["c"]
        c = 0.6 * c + jnp.tanh(h @ u["w"]) * (u["k"] % 2)
        return {"h": jnp.tanh(c), "c": c}

    keys = jax.random.split(jax.random.key(0), 2)
    us = {"w": 0.5 * jax.random.normal(keys[0], (50, 3, 3)), "k": jnp.arange(50)}
    init = {"h": jax.random.normal(keys[1], (4, 3)), "c": jnp.ones((4, 3))}
    want = sequential(lambda _, c, u: step(c, u), None, init, us)
    got = Chunks(3).evaluate(Recurrence(step, init, us, 50), 0.0)
    for leaf in want:
        np.testing.assert_allclose(got.states[leaf], want[leaf], rtol=0, atol=2e-6)
    assert got.converged


def test_entries_that_are_done_stay_as_they_are():
    """Under `jax.vmap` with one that is never done, and with none."""

    def run(rates):
        def one(rate):
            step = lambda x, u: rate * x * (1 - x) + u  # noqa: E731
            return Chunks(8, rounds=6).evaluate(
                Recurrence(step, jnp.float32(0.3), jnp.zeros(256), 256), 0.0
            )

        return jax.jit(jax.vmap(one))(jnp.asarray(rates, jnp.float32))

    easy, hard = run([1.5, 2.2, 0.5, 1.7]), run([1.5, 2.2, 3.9, 1.7])
    assert easy.converged.all() and hard.converged.tolist() == [True, True, False, True]
    keep = np.array([0, 1, 3])
    np.testing.assert_array_equal(hard.states[keep], easy.states[keep])
    np.testing.assert_array_equal(hard.iterations[keep], easy.iterations[keep])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chunks": 0}, ValueError, "chunks: got 0"),
        ({"chunks": 2.5}, TypeError, "chunks: got 2.5"),
        ({"rounds": None}, TypeError, "rounds: got None"),
        ({"rounds": 0}, ValueError, "rounds: got 0"),
    ],
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        Chunks(**options)
