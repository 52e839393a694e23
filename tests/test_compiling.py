"""How tests run: the cache of compiled programs, their number, and processes beside this one."""

import os

import jax
import jax.numpy as jnp
import pytest

from tests import compiler_cache, compiling
from tests.children import ROOT, Children, Setting

pytest_plugins = ["pytester"]
ONE = Setting(2, x64=False, optimised=False)


@pytest.fixture
def children():
    living = Children()
    yield living
    living.close()


def test_programs_of_one_process_share_nothing(children):
    first = "import jax\nleft = 1\njax.config.update('jax_debug_nans', True)\nprint('said')"
    assert not children.run(first, ONE, True)
    second = """
import jax, os
assert len(jax.devices()) == 2 and not jax.config.jax_debug_nans
assert "left" not in globals(), "it was left"
print("told", os.getpid())
1 / 0
"""
    failed = children.run(second, ONE, True)
    assert "    1 / 0" in failed and "ZeroDivisionError" in failed and "told" in failed
    assert "said" not in failed
    assert children.run("print('told', __import__('os').getpid()); 1 / 0", ONE, True).endswith(
        failed[failed.index("told") :]
    )


def test_a_process_that_ends_is_told_and_replaced(children):
    assert "ended with 3" in children.run("import os; os._exit(3)", ONE, True)
    assert not children.run("1 + 1", ONE, True)
    assert "SystemExit: 4" in children.run("raise SystemExit(4)", ONE, True)


def test_programs_of_processes_are_counted_and_single_operations_are_not(children):
    before = compiling.counted()
    program = "import jax\nx = jax.numpy.ones(3) + 1\njax.jit(lambda x: 2 * x)(x)"
    for _ in range(2):  # the second is no program of the first's
        assert not children.run(program, ONE, True)
    assert compiling.counted() == before + 2
    2 * jnp.ones(3) + 1
    jax.random.normal(jax.random.key(0), (7,))
    assert compiling.counted() == before + 2
    jax.lax.scan(lambda c, x: (c + x, c), 0.0, jnp.ones(11))
    assert compiling.counted() == before + 3


@pytest.mark.parametrize("cached", [True, False])
def test_what_reads_programs_takes_none_from_the_cache(cached, children):
    events = "/jax/compilation_cache/cache_hits"
    program = f"""
import jax
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event == "{events}"))
x = jax.numpy.arange(5.0)
for _ in range(2):
    jax.jit(lambda x: x * {os.getpid()} + 1)(x)
assert any(hits) is {cached}, hits
"""
    assert not children.run(program, ONE, cached)


def test_the_oldest_entries_go_once_there_are_too_many(tmp_path):
    for age in range(6):
        entry = tmp_path / f"{age}-cache"
        entry.write_bytes(b"x" * 10)
        os.utime(entry, (-age, -age))
    compiler_cache.remove_oldest(tmp_path, 60)
    assert len(list(tmp_path.iterdir())) == 6
    compiler_cache.remove_oldest(tmp_path, 59)
    assert {p.name for p in tmp_path.iterdir()} == {"0-cache", "1-cache"}


def test_a_run_above_its_budget_fails(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(
        """
import jax
from tests import compiling

compiling.WHOLE_RUN, compiling.COUNTED_BY = 4, jax.__version__

def pytest_configure(config):
    config.pluginmanager.register(compiling)
    config.pluginmanager.register(compiling.WholeRun(True))
"""
    )
    pytester.makepyfile(
        test_some="""
import jax

def compile(number):
    for _ in range(number):
        jax.jit(lambda: 0)()

def test_one(): compile(1)
def test_two(): compile(2)
def test_three(): compile(3)
"""
    )
    run = pytester.runpytest_subprocess("-k", "one or three")
    run.assert_outcomes(passed=2, deselected=1)
    run.stdout.fnmatch_lines(["4 programs compiled", "*3 *test_three", "*1 *test_one"])
    assert run.ret == 0
    run = pytester.runpytest_subprocess()
    run.assert_outcomes(passed=3)
    run.stdout.fnmatch_lines(["6 programs compiled", "at most 4 are wanted"])
    assert run.ret == 1
