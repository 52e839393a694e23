"""The claims of the papers, each beside the record that could contradict it.

    python -m bench paper                     every bench that a claim rests on, then the page
    python -m bench paper bppsa stale         those of some papers
    python -m bench paper --quick             tiny sizes, to try the code: no evidence
    python -m bench paper --page              the page alone, of what was measured before

Each bench runs in a process of its own, as `python -m bench NAME --resume` does: what was stopped
goes on, and what is measured is not measured again. The page, in Markdown and HTML, is written
after every bench; that of the records in bench/results stands in bench/paper/README.md.
"""

import argparse
import html
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from bench.paper.claims import bidiagonal, bppsa, grids, stale
from bench.paper.claims.claim import Claim, Records, is_quick, table
from bench.shared import record

PAPERS: Mapping[str, tuple[str, Sequence[Claim]]] = {
    "bppsa": ("Back-propagation as a scan", bppsa.CLAIMS),
    "bidiagonal": ("Propagation as a bi-diagonal system", bidiagonal.CLAIMS),
    "grids": ("Grids of processes", grids.CLAIMS),
    "stale": ("Stale pipelines", stale.CLAIMS),
}
DATA = {
    "convergence": {"data": "data", "digits": "digits"},
    "delays": {"digits": "digits"},
    "gru": {"digits": "data"},
    "pipeline": {"data": "data", "digits": "digits"},
    "residual": {"data": "data"},
    "vgg11": {"data": "data"},
}
"""Benches that read data: our option, and theirs."""
TINY = "Records of tiny sizes (`--quick`) say that the code runs, not whether a claim holds.\n\n"


def main(argv: Sequence[str]) -> None:
    """Runs the benches of some papers, and writes the page.

    Raises:
        SystemExit: some bench failed; all others ran.
    """
    options = _parsed(argv)
    papers = list(PAPERS) if options.papers in ([], ["all"]) else options.papers
    names = dict.fromkeys(c.bench for paper in papers for c in PAPERS[paper][1] if c.bench)
    failed = []
    for name in tqdm([] if options.page else list(names), desc="paper", unit="bench"):
        path = options.out / f"{name}.json"
        if not _ran(name, path, options):
            failed.append(name)
        write(papers, options.out)
    write(papers, options.out)
    print(f"the page is {options.out / 'claims.md'}, and claims.html beside it")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; what they said stands above")


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("papers", nargs="*", choices=[[], *PAPERS, "all"], help="default: all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
    parser.add_argument("--page", action="store_true", help="runs nothing")
    parser.add_argument("--data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--digits", type=pathlib.Path, help="folder of spoken digits")
    parser.add_argument("--out", type=pathlib.Path, default=record.HERE / "out" / "paper")
    parser.add_argument("--patience", type=float, help="seconds that one bench may take")
    return parser.parse_args(argv)


def _ran(name: str, path: pathlib.Path, options: argparse.Namespace) -> bool:
    """Runs a bench, going on with what it has; whether it ended well."""
    given = [
        value
        for own, theirs in DATA.get(name, {}).items()
        if getattr(options, own) is not None
        for value in (f"--{theirs}", str(getattr(options, own)))
    ]
    more = [*(["--resume"] if path.exists() else []), *(["--quick"] if options.quick else [])]
    command = [sys.executable, "-m", "bench", name, "--out", str(options.out), *more, *given]
    try:
        return subprocess.run(command, check=False, timeout=options.patience).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: stopped after {options.patience:g} s; the next run goes on with it")
        return False


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def write(papers: Sequence[str], out: pathlib.Path) -> None:
    """The page of the records in a folder."""
    records = lambda name: _read(out / f"{name}.json")  # noqa: E731
    out.mkdir(parents=True, exist_ok=True)
    page = "\n".join(f"## {PAPERS[paper][0]}\n\n{claims(paper, records)}\n" for paper in papers)
    benches = {claim.bench for paper in papers for claim in PAPERS[paper][1]}
    quick = any(map(is_quick, filter(None, map(records, sorted(benches)))))
    text = f"# The claims of the papers\n\n{TINY if quick else ''}{page}"
    (out / "claims.md").write_text(text)
    (out / "claims.html").write_text(as_html(text))


def claims(paper: str, records: Records) -> str:
    """The table of a paper."""
    return table(PAPERS[paper][1], records)


def as_html(text: str) -> str:
    """A page of headings and tables, of the Markdown that `write` makes."""
    body, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            kept = [row for row in rows if set(row) != {"---"}]
            cells = ("".join(f"<td>{_inline(cell)}</td>" for cell in row) for row in kept)
            body.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>")
            rows = []
        if mark := re.match(r"(#+) (.*)", line):
            level = len(mark[1])
            body.append(f"<h{level}>{_inline(mark[2])}</h{level}>")
    style = (
        "td{border:1px solid #999;padding:.3em;vertical-align:top}table{border-collapse:collapse}"
    )
    head = f"<meta charset='utf-8'><title>The claims of the papers</title><style>{style}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}</body></html>"


def _inline(text: str) -> str:
    marked = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", marked)
