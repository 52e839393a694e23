"""How many programs each test has compiled, and the whole run: a measure that all machines share.

Single operations, and functions that JAX compiles itself, are not counted: who is first to ask for
them in a process depends on the tests that ran before. The others are, whether XLA compiles
them or they come from the cache, those of processes that `run_on_devices` starts too.
"""

from __future__ import annotations

import collections
import functools
import math
import pathlib
import sys

import jax
import pytest
from jax.extend.core import Primitive

A_TEST = 12
"""The most of a test without a mark, and not listed."""
WHOLE_RUN = 6000
"""The most of a run of all tests."""
LISTED = {
    name: int(number)
    for number, name in map(
        str.split, pathlib.Path(__file__).with_name("programs.txt").read_text().splitlines()
    )
}
"""More, for tests that are to become shorter; a quarter is room for who runs first in a process."""

# Names of JAX's that are a test's own program, too.
NOT_SINGLE = frozenset(
    "scan while cond shard_map call closed_call checkpoint remat2 custom_jvp_call custom_vjp_call"
    " custom_linear_solve pmap jit gradient solve block inner trace identity square".split()
)
COUNTED_BY = "0.10."
"""The release of jax that the numbers are of, in single precision; others divide otherwise."""
TEST = pytest.StashKey[int]()
NAME = "compiled_programs"
compiled: collections.Counter[str] = collections.Counter()
"""The names of what was compiled, since the test began."""


@functools.lru_cache(maxsize=1)
def _single(modules: int) -> frozenset[str]:
    """The names of operations and of functions that JAX compiles itself."""
    jitted = type(jax.jit(lambda: None))
    found = set()
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "jax":
            values = list(vars(module).values())
            found |= {v.__name__ for v in values if isinstance(v, jitted)}
            found |= {v.name for v in values if isinstance(v, Primitive)}
    return frozenset(found - NOT_SINGLE)


def _listen(event: str, _: float, **told) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        compiled[told["fun_name"].removeprefix("jit(").removesuffix(")")] += 1


def listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)


def counted() -> int:
    """Of what was compiled since the test began, the programs that count."""
    single = _single(len(sys.modules))
    return sum(number for name, number in compiled.items() if name not in single)


def most(item: pytest.Item) -> float:
    if not jax.__version__.startswith(COUNTED_BY) or jax.config.jax_enable_x64:
        return math.inf
    marker = item.get_closest_marker("programs")
    return marker.args[0] if marker else LISTED.get(item.nodeid.split("[")[0], A_TEST)


def pytest_configure(config: pytest.Config) -> None:
    listen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Fails a test of the default run that compiles more than it may."""
    report = yield
    if report.when == "setup":
        item.stash[TEST] = 0
    item.stash[TEST] += counted()
    compiled.clear()
    report.user_properties = [(NAME, item.stash[TEST])]
    slow = item.get_closest_marker("slow")
    if report.when == "call" and report.passed and not slow and item.stash[TEST] > most(item):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} compiles {item.stash[TEST]} programs; {most(item)} are wanted at most:"
            " put oracles in NumPy, one jit around what is compared, or mark it"
            f" programs({item.stash[TEST]})"
        )
    return report


class WholeRun:
    """Sums up what tests compile, in all workers, where pytest reports."""

    def __init__(self, whole: bool):
        self.whole = whole
        self.tests: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] = dict(report.user_properties).get(NAME, 0)

    @property
    def total(self) -> int:
        return sum(self.tests.values())

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.total:
            terminalreporter.write_line(f"{self.total} programs compiled")
        if self.whole and self.total > WHOLE_RUN:
            terminalreporter.write_line(f"at most {WHOLE_RUN} are wanted", red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.whole and self.total > WHOLE_RUN and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
