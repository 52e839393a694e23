"""The autotuner measures every candidate once, and returns the fastest."""

import jax.numpy as jnp
import pytest

from parscan_bp.kernels import autotune


class _Clock:
    """Seconds that only pass where a scan runs."""

    now = 0.0

    def perf_counter(self):
        return self.now


def test_the_fastest_is_found_and_kept(monkeypatch):
    clock, runs = _Clock(), []
    seconds = {2: 3.0, 4: 1.0, 8: 2.0}

    def some_scan(a, b, *, radices, interpret):
        runs.append(radices[0])
        clock.now += seconds[radices[0]]
        return a + b

    monkeypatch.setattr("parscan_bp.kernels.tuning.time", clock)
    monkeypatch.setattr("parscan_bp.kernels.tuning.jax.jit", lambda f: f)
    args = jnp.ones((9, 2)), jnp.ones((9, 2))
    for _ in range(2):
        assert autotune(some_scan, *args, candidates=[2, 4, 8], repeats=3) == 4
    assert runs == [c for c in (2, 4, 8) for _ in range(4)]
    autotune(some_scan, *(a[:5] for a in args), candidates=[8])
    assert len(runs) == 18


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="candidates, repeats: got"):
        autotune(lambda a, **how: a, jnp.ones(3), candidates=[])
