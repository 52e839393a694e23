"""What is known to be wrong of JAX is found, and what is wrong of ours, too."""

import pathlib
import tomllib

import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp import installation

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def two_checks(monkeypatch):
    """The releases, and a gradient that is not ours."""
    run = lambda scan: installation._recurrence(scan)  # noqa: E731
    checks = [("releases", installation._releases), ("scan", lambda: run(installation.scan))]
    monkeypatch.setattr(installation, "_checks", lambda: iter(checks))


def test_this_installation_is_right():
    found = pb.check_installation()
    assert found.ok, str(found)
    assert str(found).endswith("everything is right")
    assert {"releases", "jax.lax.scan", "chain"} <= {check.name for check in found.checks}


def test_a_wrong_derivative_a_release_and_an_error_are_told(two_checks, monkeypatch):
    def half(step, init, xs):
        carry, ys = pb.scan(step, init, xs)
        return carry, ys / 2

    monkeypatch.setattr(installation, "scan", half)
    version = installation.metadata.version("jax")
    monkeypatch.setitem(installation.WRONG_RELEASES, version, "it is wrong")
    found = pb.check_installation()
    assert not found.ok
    assert f"releases: jax {version}: it is wrong" in str(found)
    assert "WRONG  scan" in str(found) and "entries are wrong" in str(found)
    assert "pip install --upgrade" in str(found)

    def broken(*_):
        raise RuntimeError("no device")

    monkeypatch.setattr(installation, "scan", broken)
    assert "scan: RuntimeError: no device" in str(pb.check_installation())


def test_nan_is_wrong():
    assert installation._differs(jnp.array([1.0, jnp.nan]), jnp.ones(2))
    assert not installation._differs(jnp.ones(2), jnp.ones(2))


def test_what_computes_wrongly_is_not_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in ("jax", "jaxlib"):
        (wanted,) = (d for d in project["dependencies"] if d.startswith(f"{package}>"))
        assert set(wanted.split(",")[1:]) == {f"!={r}" for r in installation.WRONG_RELEASES}
