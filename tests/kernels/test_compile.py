"""Every kernel compiles for sm_90a, without a GPU: no register spills, and loops are as counted."""

import collections
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from kernel_cases import needs_kernels
from machine_code import largest_loop

PLUGIN = "jax_cuda13_plugin"
pytestmark = [
    pytest.mark.slow,
    needs_kernels,
    pytest.mark.skipif(
        importlib.util.find_spec(PLUGIN) is None,
        reason=f"{PLUGIN} is not installed: pip install 'parscan_bp[cuda]'",
    ),
]


@pytest.fixture(scope="module")
def compiled():
    """What ptxas and nvdisasm say of every case, by its name."""
    script = pathlib.Path(__file__).with_name("compile_for_sm90.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    *cases, end = run.stdout.split("## ")[1:]
    assert end.strip() == "done"
    return dict(case.split("\n", 1) for case in cases)


def test_nothing_spills(compiled):
    for name, text in compiled.items():
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        assert spills, name
        assert set(spills) == {("0", "0")}, name


def _loops(text, kernel):
    """The largest loop of every kernel of this name."""
    for code in text.split("Compiling entry function ")[1:]:
        if code.startswith(f"'{kernel}"):
            yield largest_loop(code)


needs_nvdisasm = pytest.mark.skipif(
    shutil.which("nvdisasm") is None, reason="nvdisasm is not there: nvidia-cuda-nvdisasm has it"
)


@needs_nvdisasm
@pytest.mark.parametrize(
    ("case", "products", "instructions"),
    [
        ("weighted 20 1024", 1200, 1460),
        ("weighted 32 1024", 3072, 3570),
        ("gru 20 1024", 3660, 4310),
    ],
)
def test_columns_take_little_more_than_their_products(compiled, case, products, instructions):
    """Of three columns, so many multiply-adds; and no step waits for another thread."""
    loop = collections.Counter(*_loops(compiled[case], "column_reduce"))
    assert loop["FFMA"] == products
    assert loop.total() <= instructions
    assert loop["BAR"] == 0
    assert loop["LDL"] == loop["STL"] == 0


@needs_nvdisasm
@pytest.mark.parametrize(("case", "barriers"), [("dense 64 4", 2), ("gru 27 4", 3)])
def test_threads_wait_twice_in_a_step_of_tile_reduce(compiled, case, barriers):
    """Before the map is written and after; and where the step's own is formed. Copies wait once."""
    (loop,) = (collections.Counter(loop) for loop in _loops(compiled[case], "tile_reduce"))
    assert loop["BAR"] == barriers
    assert loop["FENCE"] == 1


@needs_nvdisasm
@pytest.mark.parametrize(
    ("case", "kernel", "instructions", "barriers"),
    [
        ("weighted 20 16", "tile_sweep", [101], 1),
        ("gru 27 4", "tile_sweep", [81, 296], 1),
        ("LSTMBackward 20 16", "recurrence", [158], 1),
        ("ElmanForward 20 16", "recurrence", [57], 0),
        ("ElmanBackward 20 16", "recurrence", [90], 0),
        ("GRUForward 20 16", "recurrence", [151], 0),
    ],
)
def test_a_step_in_sequence_has_one_barrier_and_no_copy(
    compiled, case, kernel, instructions, barriers
):
    """Its threads wait for one another, copies for a round of steps.

    Where a warp has a sample of its own, a step has neither a barrier nor a sum over threads.
    """
    loops = [collections.Counter(loop) for loop in _loops(compiled[case], kernel)]
    loops.sort(key=collections.Counter.total)  # compiled side by side, told in any order
    for loop, most in zip(loops, instructions, strict=True):
        assert loop.total() <= most
        assert loop["BAR"] == barriers
        assert bool(loop["SHFL"]) == (barriers > 0)
        ordering_copies = {"MEMBAR", "FENCE", "SYNCS", "DEPBAR", "UTMALDG", "UTMASTG", "UBLKCP"}
        assert not ordering_copies & loop.keys()


@needs_nvdisasm
@pytest.mark.parametrize(
    ("case", "products"), [("LSTMBackward 20 16", 48), ("ElmanBackward 64 16", 58)]
)
def test_the_next_step_does_not_wait_for_sums(compiled, case, products):
    """Of the products, half are those of sums: none of them stands after the last barrier."""
    (loop,) = _loops(compiled[case], "recurrence")
    *_, last = [at for at, name in enumerate(loop) if name == "BAR"]
    assert loop.count("FFMA") == products
    assert "FFMA" not in loop[last:]
