"""Every kernel compiles for sm_90a, without a GPU, and no register spills to memory."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest
from kernel_cases import needs_kernels

PLUGIN = "jax_cuda13_plugin"


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(
    importlib.util.find_spec(PLUGIN) is None,
    reason=f"{PLUGIN} is not installed: pip install 'parscan_bp[cuda]'",
)
def test_nothing_spills():
    script = pathlib.Path(__file__).with_name("compile_for_sm90.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    *cases, end = run.stdout.split("## ")[1:]
    assert end.strip() == "done"
    for case in cases:
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", case)
        assert spills, case
        assert set(spills) == {("0", "0")}, case
