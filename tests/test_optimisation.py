"""XLA optimises little in tests of the daily run on a CPU, and nowhere else."""

import jax
import pytest

from tests import optimisation


class _Cuda:
    name = "xla_cuda13"


@pytest.fixture
def told(monkeypatch):
    """Sets what JAX is told of platforms, its precision, and the plugins that are installed."""

    def tell(platforms, plugins=(), x64=False):
        monkeypatch.setattr(optimisation.metadata, "entry_points", lambda group: plugins)
        monkeypatch.setattr(optimisation, "jax", type("", (), {"config": _Config(platforms, x64)}))

    return tell


class _Config:
    def __init__(self, platforms, x64):
        self.jax_platforms, self.jax_enable_x64 = platforms, x64


DAILY, OF_GPU = "not slow and not gpu", "gpu and not slow"


@pytest.mark.parametrize(
    ("markexpr", "platforms", "plugins", "x64", "little"),
    [
        (DAILY, None, (), False, True),
        (DAILY, "cpu", (_Cuda,), False, True),
        (DAILY, None, (), True, False),
        ("slow", "cpu", (), False, False),
        ("slow or not slow", "cpu", (), False, False),
        (OF_GPU, None, (_Cuda,), False, False),
        (OF_GPU, "cuda", (), False, False),
        (OF_GPU, "cuda,cpu", (_Cuda,), False, False),
        (DAILY, None, (_Cuda,), False, False),
    ],
)
def test_little_on_a_cpu_alone(told, markexpr, platforms, plugins, x64, little):
    told(platforms, plugins, x64)
    assert optimisation.is_little(markexpr) == little


def test_of_this_run():
    assert isinstance(optimisation.may_use_a_gpu(), bool)
    if jax.config.jax_platforms == "cpu":
        assert not optimisation.may_use_a_gpu()
