"""The pages that a newcomer reads: their examples run, what they point at is there."""

import dataclasses
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import parscan_bp as pb
from bench.__main__ import BENCHES
from tools import api, figures, follow

ROOT = pathlib.Path(__file__).parents[1]
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", *DOCS)
LONG = ("choose", "devices", "pipelines", "guides/ppo", "guides/pruned", "guides/state_space")
LONG = {f"docs/{name}.md" for name in (*LONG, "guides/transformer", "guides/virtual_devices")}


def _program(page):
    return follow.program((ROOT / page).read_text())


def _run(page):
    """What they define."""
    names: dict = {"__name__": "page"}
    exec(compile(_program(page), page, "exec"), names)
    return names


@pytest.mark.slow
def test_every_example_of_the_readme_runs():
    names = _run("README.md")
    ours, theirs = names["ours"], names["theirs"]
    assert abs(ours - theirs).max() < 1e-5 * abs(theirs).max()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
        for page in filter(_program, DOCS)
    ],
)
def test_every_example_of_the_docs_runs(page):
    _run(page)


@pytest.mark.slow
def test_what_is_for_several_devices_runs_on_several(run_on_devices):
    run_on_devices(_program("docs/guides/virtual_devices.md"), 4)


def test_the_readme_is_short():
    """Its words beside tables, code and addresses of links."""
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    words = re.sub(r"^(\||    |<!--).*$|\]\([^)]*\)", "", text, flags=re.M).split()
    assert len(words) <= 900, len(words)


def test_the_readme_counts_steps_as_solvers_do():
    """The column of its table, with n = 1024 and 32 for p, C and k."""
    text, n, p = (ROOT / "README.md").read_text(), 1024, 32
    counts = {
        pb.Sweep(): ("n", n),
        pb.Chunked(p): ("2n/p + 2 log p", 2 * n / p + 10),
        pb.ChunkedCorrections(p): ("n/p (1 + rounds)", 2 * n / p),
        pb.Pallas("chunked", chunk=p): ("2 C + n/C, chunks of C", 2 * p + n / p),
        pb.Blelloch(): ("2 log n", 20),
        pb.CyclicReduction(): ("log n", 10),
        pb.Jacobi(1): ("1 a sweep", 1),
        pb.Truncated(p): ("n; sliding k", n),
        pb.Truncated(p, sliding=True): ("n; sliding k", p),
        pb.Associative(): ("2 log n", 20),
    }
    for solver, (said, steps) in counts.items():
        row = re.search(rf"^\| `{type(solver).__name__}\(.*?\| (\S[^|]*) \| [^|]* \|$", text, re.M)
        assert row[0].split(" | ")[2] == said, row[0]
        assert abs(solver.complexity(n).steps - steps) <= 2, solver


def _anchors(text):
    """What can be pointed at: the titles, in small letters, words joined by hyphens."""
    titles = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", t.lower()).strip()) for t in titles}


@pytest.mark.parametrize("page", (*PAGES, "bench/paper/README.md"))
def test_links_and_benches_of_a_page_exist(page):
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", text):
        there = ROOT / page if not target else (ROOT / page).parent.joinpath(target)
        assert there.exists(), target
        assert not anchor or anchor in _anchors(there.read_text()), (target, anchor)
    for name in re.findall(r"-m bench ([a-z]\w*)", text):
        assert name in BENCHES, name


def test_the_site_has_every_page():
    """Those of the API and of notebooks are made when it is built."""
    nav = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert len(nav) == len(set(nav))
    notebooks = [f"notebooks/{path.stem}.md" for path in ROOT.glob("notebooks/*.ipynb")]
    made = [f"docs/api/{name}.md" for name in api.PAGES]
    assert set(nav) == {*PAGES, "bench/paper/README.md", *notebooks, *made}


def test_a_reader_follows_every_page_that_has_programs():
    """`python -m tools.follow` runs them in an environment of its own, in the order of the site."""
    order = follow.pages()
    assert order[:2] == ["README.md", "docs/start.md"]
    assert set(order) == {page for page in PAGES if _program(page)}
    needed = {page: follow.extras((ROOT / page).read_text()) for page in order}
    assert {page: found for page, found in needed.items() if found} == {
        "docs/graphs.md": ["plots"],
        "docs/cpu.md": ["cpu"],
    }
    assert follow.devices((ROOT / "docs/guides/virtual_devices.md").read_text()) == [1, 4]


def test_figures_are_those_of_their_records():
    """`python -m tools.figures` draws them."""
    drawn = {path.stem: path.read_text() for path in figures.FOLDER.glob("*.svg")}
    assert drawn == {name: draw() for name, draw in figures.FIGURES.items()}
    assert max(map(len, drawn.values())) < 300_000
    shown = "".join((ROOT / page).read_text() for page in PAGES)
    assert all(f"figures/{name}.svg)" in shown for name in drawn)


def test_every_public_name_has_a_place_in_the_api():
    named = {name for names in api.PAGES.values() for name in names.split()}
    modules = [f"parscan_bp.{name}" for name, own in api.PAGES.items() if not own]
    elsewhere = {n for module in modules for n, _ in api.handed_on(module)} | {*api.PAGES}
    assert set(pb.__all__) <= named | elsewhere


def test_a_page_of_the_api_has_the_signature_the_arguments_and_an_example():
    page = api.page("scan")
    assert "## scan\n\n    parscan_bp.scan(\n        f: Callable,\n" in page
    assert "- **memory_limit**: bytes" in page and "**Returns.**" in page
    assert "\n    >>> step = lambda" in page
    assert api.markdown("As docs/use.md says.") == "As [use.md](../use.md) says.\n"


def test_the_reference_has_every_argument():
    text = (ROOT / "docs/reference.md").read_text()
    calls = [pb.scan, pb.chain, pb.graph, pb.solve, pb.while_loop, pb.replace_scans, pb.autotune]
    calls += [pb.diagnose, pb.Fused, pb.Chunks, pb.Newton, pb.FixedPoint, pb.FrozenActivations]
    solvers = [it for _, it in api.handed_on("parscan_bp.solvers")]
    calls += solvers
    for call in calls:
        for name in inspect.signature(call).parameters:
            known = name in ("f", "lacks", "step", "system") or name.startswith("_")
            assert known or re.search(rf"\b{name}\b", text), (call, name)
    for name in (*pb.Status.__members__, *(f.name for f in dataclasses.fields(pb.Report))):
        assert f"`{name}`" in text, name
    for module in (pb.layers, pb.cells, pb.operators):
        classes = [n for n in module.__all__ if inspect.isclass(getattr(module, n))]
        internal = {"Explicit", "Structure", "View"}
        assert [n for n in classes if f"`{n}`" not in text and n not in internal] == []


@pytest.mark.slow  # needs `mkdocs`
@pytest.mark.skipif(not importlib.util.find_spec("material"), reason="needs '.[docs]'")
def test_the_site_is_built_without_a_warning(tmp_path):
    subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, check=True)
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    subprocess.run(built, cwd=ROOT, check=True)
    assert (tmp_path / "docs/guides/kalman.html").exists()
    formulas = (tmp_path / "docs/mathematics.html", *tmp_path.glob("notebooks/01*.html"))
    assert all("<math " in page.read_text() for page in formulas)


def test_the_citation_has_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert "Version 2.0, January 2004" in (ROOT / project["license-files"][0]).read_text()
