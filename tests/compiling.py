"""How many programs each test has compiled, and the whole run: a measure that all machines share.

Single operations, and functions that JAX compiles itself, are not counted: who is first to ask for
them in a process depends on the tests that ran before. The others are, whether XLA compiles
them or they come from the cache, those of processes that `run_on_devices` starts too.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import sys

import jax
import pytest
from jax.extend.core import Primitive

WHOLE_RUN = 4300
"""The most of a run of all tests, by `COUNTED_BY`."""
COUNTED_BY = "0.10."
"""A release of jax; others name and divide programs otherwise."""
TOLD = 10
"""Tests that are named at the end, those that compile most."""

# Names of JAX's that are a test's own program, too.
NOT_SINGLE = frozenset(
    "scan while cond shard_map call closed_call checkpoint remat2 custom_jvp_call custom_vjp_call"
    " custom_linear_solve pmap jit gradient solve block inner trace identity square".split()
)
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
            found |= {v.__name__ for v in values if isinstance(v, jax.numpy.ufunc)}
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


def add_option(parser: pytest.Parser) -> None:
    """To the command line."""
    parser.addoption(
        "--programs",
        type=pathlib.Path,
        metavar="FILE",
        help="write for each test the number of its programs and its seconds, the dearest first",
    )


def pytest_configure(config: pytest.Config) -> None:
    listen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Notes what a test has compiled up to here.

    No test alone has a bound: which of two compiles what both use is who comes first in a process.
    """
    report = yield
    if report.when == "setup":
        item.stash[TEST] = 0
    item.stash[TEST] += counted()
    compiled.clear()
    report.user_properties = [(NAME, item.stash[TEST])]
    return report


class WholeRun:
    """Sums up what tests compile, in all workers, where pytest reports."""

    def __init__(self, whole: bool, told_in: pathlib.Path | None = None):
        self.whole = whole
        self.told_in = told_in
        self.tests: dict[str, int] = {}
        self.seconds: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] = dict(report.user_properties).get(NAME, 0)
        self.seconds[report.nodeid] += report.duration

    @property
    def total(self) -> int:
        return sum(self.tests.values())

    @property
    def too_many(self) -> bool:
        bound = self.whole and jax.__version__.startswith(COUNTED_BY)
        return bound and self.total > WHOLE_RUN

    def pytest_terminal_summary(self, terminalreporter) -> None:
        dearest = sorted(self.tests, key=self.tests.__getitem__, reverse=True)
        if self.told_in is not None:
            lines = [f"{self.tests[n]:5} {self.seconds[n]:8.2f} {n}\n" for n in dearest]
            self.told_in.write_text("".join(lines))
        if not self.total:
            return
        terminalreporter.write_line(f"{self.total} programs compiled")
        if self.whole:
            for name in dearest[:TOLD]:
                terminalreporter.write_line(f"{self.tests[name]:5} {name}")
        if self.too_many:
            terminalreporter.write_line(f"at most {WHOLE_RUN} are wanted", red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.too_many and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
