"""The whole run is done twice, in single and in double precision; no test need run twice alike."""

import collections
import gc
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

# It is read with the first import of jaxlib, which tells 5 kB of each program from the cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest

from tests import changed, children, compiler_cache, compiling, optimisation

# What was measured on this machine is not to decide what is tested.
os.environ["PARSCAN_BP_WISDOM"] = "off"

# Tracing makes millions of objects; to look for cycles among them took an eighth of long tests.
gc.set_threshold(100_000, 50, 50)


@pytest.fixture(scope="module", autouse=True)
def _freeze_what_earlier_modules_left() -> None:
    """It is not looked through for cycles again: tests for leaks collect garbage many times."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    changed.add_option(parser)
    compiling.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(changed, "changed")
    config.pluginmanager.register(compiling, "compiling")
    if not hasattr(config, "workerinput"):
        whole = not _named(config) and config.option.markexpr == _default_marks(config)
        config.pluginmanager.register(
            compiling.WholeRun(whole, config.getoption("--programs")), "whole_run"
        )
        compiler_cache.remove_oldest()
    compiler_cache.switch_on()
    if optimisation.is_little(config.option.markexpr):
        os.environ.setdefault("XLA_FLAGS", optimisation.LITTLE)


def _default_marks(config: pytest.Config) -> str:
    """The tests that `addopts` chooses."""
    return config.getini("addopts")[-1]


@pytest.fixture(autouse=True)
def _compile_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that read what is compiled, marked so, take nothing from the cache."""
    if request.node.get_closest_marker("reads_compiled") is None:
        yield
        return
    with compiler_cache.switched_off():
        yield


# Their claims differ with the precision.
IN_BOTH = (
    "tests/chain/test_chain.py::test_gradients_with_every_solver",
    "tests/flax/test_nnx.py::test_values_and_gradients_are_those_of_flax",
    "tests/operators/test_operators.py::test_against_matrices",
    "tests/modes/test_matrix.py::test_derivatives_in_every_mode",
    "tests/solvers/test_solve.py",
)
# Rounding hides less in double precision.
IN_DOUBLE = ("tests/cells/", "tests/flax/test_linen.py", "tests/layers/test_random_layers.py")


# Those that take longest, each in a line: `-m slow` runs them.
SLOW = frozenset((pathlib.Path(__file__).parent / "slow.txt").read_text().splitlines())


def _named(config: pytest.Config) -> bool:
    """Whether tests were named: of these, both precisions run the same."""
    return config.args != config.getini("testpaths")


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """In double precision, files are not imported of which nothing is run."""
    if _named(config) or not jax.config.jax_enable_x64:
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    files = [name.split("::")[0] for name in (*IN_BOTH, *IN_DOUBLE)]
    return None if any(f.startswith(path) or path.startswith(f) for f in files) else True


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the other precision runs, and most cases of `sampled` tests."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and item.nodeid not in SLOW:
            cases[item.nodeid.split("[")[0]].append(item)
    for alike in cases.values():
        sample = _sample(alike)
        for item in alike:
            if item not in sample:
                item.add_marker(pytest.mark.slow)
    if _named(config):
        return

    def belongs(item: pytest.Item) -> bool:
        if item.nodeid.startswith(IN_DOUBLE):
            return jax.config.jax_enable_x64
        return not jax.config.jax_enable_x64 or item.nodeid.startswith(IN_BOTH)

    out = [item for item in items if not belongs(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if belongs(item)]


def _sample(cases: list[Any]) -> list[Any]:
    """Those of a test's cases that run each time; see the marks in pyproject.toml."""
    wanted = cases[0].get_closest_marker("sampled").kwargs.get("of")
    if wanted is not None:
        return [case for case in cases if any(v in wanted for v in case.callspec.params.values())]
    sample: list[Any] = []
    missing = {pair for case in cases for pair in _values(case)}
    while missing:
        sample.append(max(cases, key=lambda case: len(missing & _values(case))))
        missing -= _values(sample[-1])
    return sample


def _values(case: Any) -> set[tuple[str, int]]:
    """The parameters of a test's case, each with its value, which other cases share."""
    return {(name, id(value)) for name, value in case.callspec.params.items()}


@pytest.fixture(scope="session")
def _children() -> Iterator[children.Children]:
    living = children.Children()
    yield living
    living.close()


@pytest.fixture
def run_on_devices(
    request: pytest.FixtureRequest, _children: children.Children
) -> Callable[..., None]:
    """Runs a program where JAX has so many CPU devices.

    The program is a text, or a function of the test's file, which is called with ``arguments``.
    What it compiles is not optimised below the level at which collectives are chosen, unless it
    is to be ``optimised``. One process runs all programs that want the same, in turn; one that
    leaves behind what others would see, such as a mesh that is set, runs ``alone``.
    """
    cached = request.node.get_closest_marker("reads_compiled") is None

    def run(
        program: str | Callable[..., None],
        devices: int,
        arguments: tuple[Any, ...] = (),
        *,
        x64: bool = False,
        optimised: bool = False,
        alone: bool = False,
    ) -> None:
        text = program if isinstance(program, str) else children.call_of(program, arguments)
        setting = children.Setting(devices, x64, optimised)
        failed = (children.run_alone if alone else _children.run)(text, setting, cached)
        assert not failed, failed

    return run


@pytest.fixture
def one_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that divide their work by the size of the GPU: few large instances to simulate."""
    monkeypatch.setattr("parscan_bp.kernels.tiles.SM_COUNT", 1)
