"""The tables of the pages are those that the records make."""

import pytest

from bench import tables
from bench.shared import pages


@pytest.mark.parametrize("path", tables.PAGES, ids=lambda path: path.parent.name)
def test_the_tables_of_a_page_are_those_of_the_records(path):
    text = path.read_text()
    assert "<!-- table " in text
    assert pages.filled(text, tables.MAKERS) == text, "python -m bench tables makes them anew"


def test_a_table_is_made_in_its_place():
    text = "a\n<!-- table t -->\nold\n<!-- end -->\nb\n<!-- table t -->\n<!-- end -->\n"
    made = pages.filled(text, {"t": lambda: "new"})
    assert made == text.replace("old\n", "").replace("t -->\n", "t -->\nnew\n")
    with pytest.raises(KeyError, match="t"):
        pages.filled(text, {})


def test_files_that_are_right_are_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table t -->\n<!-- end -->\n")
    assert pages.fill([page], {"t": lambda: pages.markdown(["a"], [["1"]])}) == [page]
    assert "| a |\n| --- |\n| 1 |\n<!-- end -->" in page.read_text()
    assert pages.fill([page], {"t": lambda: pages.markdown(["a"], [["1"]])}) == []
