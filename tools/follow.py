"""Follows the pages of the site as a reader does: a clone, a fresh environment, page by page.

python -m tools.follow [--python PYTHON] [page ...]

Without arguments all pages of the site, in its order. The environment has `'.[flax]'`, and from a
page on what that says ahead of its first program. The programs of a page run in one process, in an
empty folder, on as many devices as the page asks for. What is committed is followed.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]


def main(argv: list[str]) -> None:
    """Runs them all, and ends with the number of those that fail."""
    parser = argparse.ArgumentParser("python -m tools.follow")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("pages", nargs="*")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        clone = pathlib.Path(folder) / "parscan_bp"
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        subprocess.run([asked.python, "-m", "venv", ".venv"], cwd=clone, check=True)
        install(clone, "flax")
        failed = [page for page in asked.pages or pages(clone) if not follow(clone, page)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def pages(root: pathlib.Path = ROOT) -> list[str]:
    """Those of the site that have programs, in its order."""
    nav = re.findall(r": (\S+\.md)$", (root / "mkdocs.yml").read_text(), re.M)
    return [page for page in nav if (root / page).exists() and program((root / page).read_text())]


def program(text: str) -> str:
    """The examples of a page, one after the other, as one reads them."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))


def extras(text: str) -> list[str]:
    """What a page says ahead of its first program that it needs."""
    return re.findall(r"pip install '(?:parscan_bp|\.)\[(\w+)\]'", text.split("```python")[0])


def devices(text: str) -> list[int]:
    """The numbers of devices that the programs of a page are run with."""
    return [
        1,
        *map(int, re.findall(r"XLA_FLAGS=--xla_force_host_platform_device_count=(\d+)", text)),
    ]


def install(clone: pathlib.Path, extra: str) -> None:
    """Installs the clone with an extra into its environment."""
    command = [clone / ".venv/bin/python", "-m", "pip", "install", "-q", f".[{extra}]"]
    subprocess.run(command, cwd=clone, check=True)


def follow(clone: pathlib.Path, page: str) -> bool:
    """Runs the programs of a page, says how that went, and shows the end of what fails."""
    text = (clone / page).read_text()
    for extra in extras(text):
        install(clone, extra)
    for count in devices(text):
        flags = f"--xla_force_host_platform_device_count={count}"
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as empty:
            (pathlib.Path(empty) / "program.py").write_text(program(text))
            ran = subprocess.run(
                [clone / ".venv/bin/python", "program.py"],
                cwd=empty,
                env=env | {"XLA_FLAGS": flags, "PARSCAN_BP_WISDOM": "off"},
                capture_output=True,
                text=True,
            )
        seconds = time.perf_counter() - start
        verdict = "ok" if ran.returncode == 0 else "FAILED"
        print(f"{verdict:6} {seconds:5.0f} s  {count} device(s)  {page}", flush=True)
        if ran.returncode:
            print(ran.stdout[-1000:], ran.stderr[-3000:], flush=True)
            return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
