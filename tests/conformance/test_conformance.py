"""Other people's programs by our scan; `python -m tests.conformance` prints all of them."""

import functools
import os
import subprocess
import sys

import jax
import pytest
from jax import lax

import parscan_bp as pb
from tests.conformance.other_peoples import advantages_with_resets
from tests.conformance.trials import differences, results


def test_advantages_with_resets():
    with jax.enable_x64(True):
        scan = functools.partial(pb.scan, solver=pb.Sweep())
        want = results(advantages_with_resets(lax.scan))
        assert not differences(lambda: results(advantages_with_resets(scan)), want)


@pytest.mark.slow
@pytest.mark.parametrize("patched", [False, True], ids=["passed as an argument", "patched"])
def test_other_peoples_programs(patched):
    command = [sys.executable, "-m", "tests.conformance", *(["--patched"] if patched else [])]
    env = {**os.environ, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
