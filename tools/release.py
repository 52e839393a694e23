"""Builds the sdist and the wheel, and tests what they install by the tests of the sdist.

python -m tools.release [--oldest PYTHON] [--newest PYTHON] [--short | arguments of pytest]

In two fresh environments outside of the sources: the oldest Python with the oldest JAX and Flax
that pyproject.toml allows, and the newest with what pip finds. Each gets the wheel, then the sdist,
whose files have to be the same. Without more arguments all default tests run; with `--short` those
of the house, the installation, export, `solve` and the contract of `scan`. Needs `build`.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHORT = (
    "test_house.py test_installation.py test_export.py scan/test_contract.py solvers/test_solve.py"
)


def main(argv: list[str]) -> None:
    """Builds and tests; raises if either fails."""
    parser = argparse.ArgumentParser("python -m tools.release")
    parser.add_argument("--oldest", default="python3.11", metavar="PYTHON")
    parser.add_argument("--newest", default="python3.12", metavar="PYTHON")
    parser.add_argument("--short", action="store_true")
    asked, tests = parser.parse_known_args(argv)
    tests += [f"tests/{name}" for name in SHORT.split()] if asked.short else []
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = built(pathlib.Path(folder))
        for name, python, pins in (
            ("oldest", asked.oldest, oldest()),
            ("newest", asked.newest, []),
        ):
            place = pathlib.Path(folder) / name
            run(python, "-m", "venv", place / "venv")
            installed = place / "venv" / "bin" / "python"
            run(
                installed,
                "-m",
                "pip",
                "install",
                "-q",
                f"parscan_bp[test] @ {wheel.as_uri()}",
                *pins,
            )
            tested(installed, sdist, tests)


def oldest() -> list[str]:
    """The oldest releases of JAX and Flax that pyproject.toml allows."""
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["flax"]]
    found = (re.match(r"(jax|jaxlib|flax)>=([\d.]+)", line) for line in wanted)
    return [f"{it[1]}=={it[2]}" for it in found if it]


def built(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The sdist, and the wheel that is made of it."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    assert sdist.name == f"parscan_bp-{PROJECT['version']}.tar.gz", sdist
    return sdist, wheel


def tested(python: pathlib.Path, sdist: pathlib.Path, tests: list[str]) -> None:
    """Installs the sdist in place of the wheel, and runs the sdist's tests of it.

    Beside them lie the installed sources in the place of its own.
    """
    (package,) = python.parents[1].glob("lib/python*/site-packages/parscan_bp")
    of_wheel = contents(package)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", sdist)
    assert contents(package) == of_wheel, "the sdist installs other files than the wheel"
    with tarfile.open(sdist) as archive:
        archive.extractall(python.parents[2], filter="data")
    unpacked = python.parents[2] / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(unpacked / "parscan_bp")
    (unpacked / "parscan_bp").symlink_to(package)
    show = "import parscan_bp as pb; print(pb.__version__, pb.check_installation(), sep='\\n')"
    run(python, "-I", "-c", show, cwd=unpacked)
    run(python, "-m", "pytest", "-q", *tests, cwd=unpacked)


def contents(package: pathlib.Path) -> dict[str, bytes]:
    """What is installed, by name."""
    files = (p for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return {p.relative_to(package).as_posix(): p.read_bytes() for p in files}


def run(*command: object, cwd: pathlib.Path = ROOT) -> None:
    """Runs a command, by the settings of its own environment."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
