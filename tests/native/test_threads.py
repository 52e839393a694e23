"""Batches whose rows are taken by threads: what may be, and that all are as without."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from parscan_bp import native
from tests.native.drawn_steps import Drawn

pytest.importorskip("llvmlite")


@pytest.fixture
def threads(monkeypatch):
    """Threads for the smallest loops, as on a machine of four processors."""
    from parscan_bp.native.llvm import threads

    monkeypatch.setattr(threads, "measured", lambda _: {"native": {"operations": 1}})
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(4))
    return threads


def _count(monkeypatch, threads):
    counts = []
    chosen = threads.threads_for
    monkeypatch.setattr(threads, "threads_for", lambda p: (counts.append(chosen(p)), counts[-1])[1])
    return counts


def _both(step, init, xs, **how):
    both = [functools.partial(scan, step, init, xs, **how) for scan in (native.scan, lax.scan)]
    got, want = jax.jit(lambda: [run() for run in both])()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


W = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) / 3
XS = np.random.default_rng(1).normal(size=(5, 8, 6)).astype(np.float32)
INIT = np.random.default_rng(2).normal(size=(8, 6)).astype(np.float32)
ROW = np.arange(6, dtype=np.float32)
COLUMN = np.arange(8, dtype=np.float32) / 4
APART = {
    "a product": (4, lambda c, x: (jnp.tanh(c @ W + x), c)),
    "rows repeated": (4, lambda c, x: (0.5 * c * ROW + x, 2 * c)),
    "columns beside one another": (
        4,
        lambda c, x: (jnp.concatenate([2 * c[:, :2], x[:, 2:]], 1), c),
    ),
    "rows turned round": (1, lambda c, x: (jnp.concatenate([c[4:], x[:4]]), c)),
    "numbers in another order of rows": (1, lambda c, x: ((c.reshape(48) * 2).reshape(8, 6), c)),
    "a column repeated": (4, lambda c, x: (c * COLUMN[:, None], x + c)),
    "a number for each row": (1, lambda c, x: (c * lax.broadcast_in_dim(x[:, 0], (8, 6), (0,)), x)),
    "a sum of a step by itself": (1, lambda c, x: (c + x, jnp.float32(1) * ROW)),
}


@pytest.mark.parametrize("case", APART)
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_never_meet(case, reverse, threads, monkeypatch):
    counts = _count(monkeypatch, threads)
    wanted, step = APART[case]
    _both(step, INIT, XS, length=5, reverse=reverse)
    assert set(counts) == {wanted}


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6])
def test_equal_numbers_of_rows(rows, threads, monkeypatch):
    counts = _count(monkeypatch, threads)
    _both(APART["a product"][1], INIT[:rows], XS[:, :rows], length=5)
    assert set(counts) == {{1: 1, 2: 2, 3: 3, 5: 1, 6: 3}[rows]}


@pytest.mark.parametrize("seed", range(20, 25))
def test_drawn_steps_by_threads(seed, threads):
    drawn = Drawn(seed, np.float32)
    step = functools.partial(drawn.step, drawn.shared)
    _both(step, drawn.init, drawn.xs, length=drawn.length, reverse=drawn.reverse)


def test_short_loops_have_none():
    from parscan_bp.native.llvm import threads as chosen
    from parscan_bp.native.llvm.elementwise import FUNCTIONS
    from parscan_bp.native.program import Loop, Program

    closed = jax.make_jaxpr(lambda c: c * 2)(jnp.ones((8, 6)))
    assert chosen.threads_for(Program(Loop.of(closed, 0, 1, 3, False), FUNCTIONS)) == 1


def test_a_function_is_registered_once_whoever_asks_for_it_at_once():
    def run(scale, xs):
        return native.scan(lambda h, x: (h + scale * x, None), jnp.zeros(3), xs, length=4)[0]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        programs = [jax.jit(functools.partial(run, 1.0625)) for _ in range(8)]
        lowered = list(pool.map(lambda f: f.lower(jnp.ones((4, 3))).as_text(), programs))
    assert len({text.partition("parscan_bp_")[2][:32] for text in lowered}) == 1
