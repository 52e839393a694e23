"""Tables in Markdown files, made of records.

A table stands between two comments, `<!-- table NAME -->` and `<!-- end -->`; what is between them
is replaced by what a function of that name makes.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

Makers = Mapping[str, Callable[[], str]]

_BLOCK = re.compile(r"(<!-- table (?P<name>[\w ]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str, makers: Makers) -> str:
    """The text with every table made anew.

    Raises:
        KeyError: a table has a name that nothing makes.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{makers[found['name']]()}\n", text)


def fill(paths: Sequence[pathlib.Path], makers: Makers) -> list[pathlib.Path]:
    """Makes the tables of files anew; those files that are changed by it."""
    changed = []
    for path in paths:
        old = path.read_text()
        new = filled(old, makers)
        if new != old:
            path.write_text(new)
            changed.append(path)
    return changed


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; an empty row is left out."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
