"""A training step with kernels is one graph of a GPU's driver, launched at once."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest
from test_compile import PLUGIN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec(PLUGIN) is None,
        reason=f"{PLUGIN} is not installed: pip install 'parscan_bp[cuda]'",
    ),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 12), reason="before, XLA leaves such kernels out of graphs"
    ),
]


@pytest.mark.parametrize(("solver", "kernels"), [("chosen", 2), ("Pallas", 4)])
def test_a_training_step_is_one_graph(solver, kernels, tmp_path):
    script = pathlib.Path(__file__).with_name("compile_training_step.py")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_dump_to={tmp_path}"}
    command = [sys.executable, script, solver]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (dump,) = tmp_path.glob("*.thunk_sequence_after_thunk_passes.txt")
    launched = dump.read_text()
    assert re.findall(r"^\d+: (\w+)", launched, re.MULTILINE) == ["kCommandBuffer"]
    assert len(re.findall(r"^ +\d+: kCustomCall ", launched, re.MULTILINE)) == kernels
