"""The pages that a newcomer reads: their examples run, what they point at is there."""

import pathlib
import re
import tomllib

import pytest

from bench.__main__ import BENCHES

ROOT = pathlib.Path(__file__).parents[1]
DOCS = (
    *("choose", "conformance", "devices", "diagnose", "extend", "gpu", "graphs", "horizons"),
    "pipelines",
    "programs",
    "use",
    "while_loops",
)
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"),
    *(f"docs/{name}.md" for name in DOCS),
)


def _run(page):
    """What the examples of a page define, one after the other, as one reads them."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert blocks
    names: dict = {"__name__": "page"}
    for block in blocks:
        exec(block, names)
    return names


@pytest.mark.slow
def test_every_example_of_the_readme_runs():
    names = _run("README.md")
    ours, theirs = names["ours"], names["theirs"]
    assert abs(ours - theirs).max() < 1e-5 * abs(theirs).max()


@pytest.mark.parametrize(
    "page",
    [
        *(
            pytest.param(f"docs/{name}.md", marks=pytest.mark.slow)
            for name in ("choose", "devices", "pipelines")
        ),
        "docs/conformance.md",
        "docs/diagnose.md",
        "docs/extend.md",
        "docs/gpu.md",
        "docs/graphs.md",
        "docs/horizons.md",
        "docs/programs.md",
        "docs/use.md",
        "docs/while_loops.md",
    ],
)
def test_every_example_of_the_docs_runs(page):
    _run(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_benches_of_a_page_exist(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
    for name in re.findall(r"-m bench ([a-z]\w*)", text):
        assert name in BENCHES, name


def test_the_citation_has_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert "Version 2.0, January 2004" in (ROOT / project["license-files"][0]).read_text()
