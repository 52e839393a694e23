"""Puts the pages of the site together: python -m tools.site, then mkdocs build --strict.

They lie in build/pages as in the repository, so that links hold in both; notebooks become Markdown,
formulas MathML, and docs/api is made of the docstrings. Needs `pip install '.[docs]'`.
"""

import pathlib
import re
import shutil

import nbconvert
from latex2mathml import converter

from tools import api

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
COPIED = (
    "*.md",
    "CITATION.cff",
    "docs/**/*.md",
    "docs/**/*.svg",
    "bench/**/*.md",
    "bench/results/*",
)

_CODE_OR_FORMULA = re.compile(
    r"^```(?!math$).*?^```$|`[^`\n]+`|^    [^\n]*$"
    r"|^```math\n(?P<fenced>.*?)^```$|\$\$(?P<block>[^$]+)\$\$|\$(?P<inline>(?:[^$\n]|\n(?!\n))+)\$",
    re.DOTALL | re.MULTILINE,
)


def main() -> None:
    """Makes them anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in (path for pattern in COPIED for path in ROOT.glob(pattern)):
        _write(path.relative_to(ROOT), path.read_bytes())
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        text, resources = nbconvert.MarkdownExporter().from_filename(str(path))
        figures = resources["outputs"]
        for name, data in figures.items():
            _write(pathlib.Path("notebooks") / path.stem / name, data)
        placed = re.sub(r"\]\((output_\w+\.\w+)\)", rf"]({path.stem}/\1)", text)
        _write(pathlib.Path(f"notebooks/{path.stem}.md"), placed.encode())
    for name in api.PAGES:
        _write(pathlib.Path(f"docs/api/{name}.md"), api.page(name).encode())


def _write(path: pathlib.Path, data: bytes) -> None:
    to = PAGES / path
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        data = with_formulas(re.sub(r"(\]\([^)]*)\.ipynb\)", r"\1.md)", data.decode())).encode()
    to.write_bytes(data)


def with_formulas(text: str) -> str:
    """A page whose formulas, as GitHub reads them, are MathML, as browsers do."""

    def made(found: re.Match) -> str:
        block = found["fenced"] or found["block"]
        if block:
            return f"\n\n{converter.convert(block.strip(), display='block')}\n\n"
        inline = found["inline"]  # in a span: a line that begins with a formula is no block
        return f"<span>{converter.convert(inline.strip())}</span>" if inline else found[0]

    return _CODE_OR_FORMULA.sub(made, text)


if __name__ == "__main__":
    main()
