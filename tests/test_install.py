"""A plain installation: the core runs alone, and what is missing says so."""

import importlib.util
import pathlib
import subprocess
import sys
import venv

import pytest

from tools import release

ROOT = pathlib.Path(__file__).parent.parent

CODE = """
import importlib.util, pathlib, sys
import jax, jax.numpy as jnp
import parscan_bp as pb

assert pathlib.Path(sys.prefix) in pathlib.Path(pb.__file__).parents, pb.__file__
for name in ("flax", "matplotlib"):
    assert importlib.util.find_spec(name) is None, name
step = lambda h, x: (jnp.tanh(0.5 * h + x), h)
for solver in (None, pb.Sweep(), pb.Blelloch(), pb.Chunked(chunks=2), pb.Associative()):
    loss = lambda xs: pb.scan(step, 0.0, xs, solver=solver)[0]
    assert jax.grad(loss)(jnp.zeros(3)).tolist() == [0.25, 0.5, 1.0]
for module, extra in (("nnx", "flax"), ("linen", "flax"), ("plots", "plots")):
    try:
        importlib.import_module(f"parscan_bp.{module}")
    except ImportError as error:
        assert f"pip install 'parscan_bp[{extra}]'" in str(error), error
    else:
        raise AssertionError(module)
print("the core runs")
"""


@pytest.mark.slow  # downloads jax
def test_a_fresh_installation_runs_the_core_and_names_the_missing_extras(tmp_path):
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "parscan_bp", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Building leaves files beside the sources: a copy is built.
    for name in filter(None, tracked.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", source], check=True)
    run = subprocess.run(
        [python, "-I", "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "the core runs\n"


def test_the_oldest_versions_that_a_release_is_tested_on_are_the_oldest_supported():
    pins = dict(pin.split("==") for pin in release.oldest())
    table = (ROOT / "CONTRIBUTING.md").read_text()
    assert f"| jax, jaxlib | {pins['jax']} and newer |" in table
    assert f"| flax (`[flax]`) | {pins['flax']} and newer |" in table
    assert pins["jaxlib"] == pins["jax"] and len(pins) == 3


@pytest.mark.slow  # downloads all that '.[test]' needs, twice
@pytest.mark.skipif(not importlib.util.find_spec("build"), reason="needs `build`")
def test_a_release_is_tested_as_it_is_installed():
    pythons = ("--oldest", sys.executable, "--newest", sys.executable)
    release.main([*pythons, "tests/test_installation.py"])
