"""Tables on narrow terminals: no line is too long, no word is broken, and an id stays in one piece."""

from __future__ import annotations

import pytest

from bayou.cli import output
from bayou.cli.output import Table

RUN = "01990c0d-5e1f-7aaa-8bbb-0123456789ab"
LISTED = Table(
    ("model", "name", "version", "size", "content type", "created", "lifetime", "tags"),
    [
        ("web1", "report", "12", "1.2 KB", "application/vnd.apache.parquet", "2026-11-17 09:00:00", "", "env=prod"),
        ("web2", "usage", "3", "12 KB in 3 files", "text/plain", "2026-11-17 09:00:00", "", "team=a env=test x=y"),
    ],
    frozenset({"version", "size"}),
)
RUNS = Table(
    ("run", "workflow", "status", "why"),
    [(RUN, "nightly", "failed", "the step export of the job all has failed with exit code 3")],
)


@pytest.mark.parametrize("table", [LISTED, RUNS], ids=["list", "runs"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_without_breaking_a_word(table, width):
    lines = list(output._terminal_table(table, width, bold=False))

    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert words >= {word for row in table.rows for cell in row for word in cell.split()}


def test_an_id_that_is_wider_than_the_terminal_is_still_one_word():
    lines = list(output._terminal_table(RUNS, 20, bold=False))

    assert any(line.endswith(RUN) for line in lines)


def test_a_wide_terminal_gets_one_line_for_each_row_and_no_empty_column():
    lines = list(output._terminal_table(LISTED, 200, bold=False))

    assert len(lines) == 3
    assert "lifetime" not in lines[0]
    assert lines[0].index("size") + len("size") == lines[1].index("1.2 KB") + len("1.2 KB")


def test_wide_characters_are_counted_as_the_terminal_shows_them():
    table = Table(("name", "size"), [("データ", "1 B"), ("abcdef", "2 B")])

    first, second = list(output._terminal_table(table, 60, bold=False))[1:]
    assert first == "データ  1 B"
    assert second == "abcdef  2 B"
