"""Builds the sdist and the wheel, and tests the wheel by what the sdist unpacks to.

python -m tools.release [arguments of pytest; tests/ if there are none]

The tests run in a fresh environment, in a folder without the package's sources. Needs `build`.
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv

ROOT = pathlib.Path(__file__).parents[1]


def main(argv: list[str]) -> None:
    """Builds and tests; raises if either fails."""
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = built(pathlib.Path(folder))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked = pathlib.Path(folder) / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(unpacked / "parscan_bp")
        python = pathlib.Path(folder) / "venv" / "bin" / "python"
        venv.create(python.parents[1], with_pip=True)
        run(python, "-m", "pip", "install", "-q", f"parscan_bp[test] @ {wheel.as_uri()}")
        run(python, "-m", "pytest", *(argv or ["tests"]), cwd=unpacked)


def built(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The sdist, and the wheel that is made of it."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    assert sdist.name == f"parscan_bp-{version}.tar.gz", sdist
    return sdist, wheel


def run(*command: object, cwd: pathlib.Path = ROOT) -> None:
    """Runs a command."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
