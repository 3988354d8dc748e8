"""The report: tables and plots come from results alone, and the page has what the results say."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import _svg
import _tables
import pytest
import report
from _results import Machine, Requests, Result, Row
from _svg import Bars, Line

MACHINE = Machine(2, 8, "Linux 6.1", "3.11.7", {"rclone": "1.75"})


def row(name: str, tool: str, seconds: float, *, n: int = 10_000, requests: int = 9, **more: Any) -> Row:
    known: dict[str, Any] = {"ratio": 0.3, "limit": 0.5} if tool == "bayou" else {}
    return Row(name, n, tool, (seconds,), (seconds / 2,), (Requests(put=requests),), **(known | more))


def rows(n: int = 10_000, **more: Any) -> list[Row]:
    return [
        row(name, tool, seconds, n=n, requests=requests, **more)
        for name in ("cold push", "cold pull")
        for tool, seconds, requests in (("bayou", 1.0, 9), ("rclone", 4.0, 2 * n), ("s5cmd", 3.0, n))
    ]


def result(benchmark: str, *measured: Row) -> Result:
    return Result(benchmark, "2031-05-04", "abc1234", MACHINE, measured, size=5_000, notes=("A note.",))


def texts(svg: str) -> list[str]:
    """Return what an SVG says; one that is not well-formed is an error."""
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_table_against_peers_has_the_ratio_before_what_each_tool_took():
    lines = _tables.peers_table([*rows(), *rows(delay_ms=20.0, ratio=0.6)[:2]])

    assert lines[2] == (
        "| cold push | 10,000 | – | **0.30** | 0.5 | 1.00 / 0.50 / 9 | 4.00 / 2.00 / 20,000 | 3.00 / 1.50 / 10,000 |"
    )
    assert lines[4].startswith("| cold push | 10,000 | 20 ms | **0.60** (above) | 0.5 |")
    assert lines[4].endswith("| – |")  # s5cmd was not measured there


def test_a_table_of_growth_compares_the_time_per_file_with_the_size_before():
    measured = [Row("push", n, "bayou", (seconds,), memory_mb=300.0) for n, seconds in ((200, 6.0), (100, 2.0))]

    lines = _tables.growth_table(measured)

    assert lines[2:] == [
        "| 100 | 2.0 | 20,000 | – | 300 MB | – | – |",
        "| 200 | 6.0 | 30,000 | 1.50 | 300 MB | – | – |",
    ]


def test_plots_over_the_number_of_files_have_each_tool_and_both_axes():
    plots = _tables.size_plots([*rows(1_000), *rows(10_000), *rows(10_000, delay_ms=20.0)])

    assert set(plots) == {"push-seconds.svg", "push-requests.svg", "pull-seconds.svg", "pull-requests.svg"}
    said = texts(plots["push-seconds.svg"])
    assert {"files", "seconds", "bayou", "rclone", "s5cmd", "bayou, 20 ms", "1,000", "10,000"} <= set(said)
    assert "bayou, 20 ms" not in texts(plots["push-requests.svg"])  # a delay changes no number of requests


def test_a_plot_of_ratios_has_the_values_and_says_what_the_dashes_are():
    measured = [*rows(1_000, ratio=0.9), *rows(), *rows(delay_ms=20.0, ratio=0.12, limit=0.25)]
    said = texts(_tables.ratios_plot("Sync", measured))

    assert said.count("0.30") == said.count("0.12") == 2
    assert "0.90" not in said  # a smaller size is in the table only
    assert {"on loopback", "20 ms added", "dashed: limit", "cold push", "10,000 files"} <= set(said)


@pytest.mark.parametrize(
    "svg",
    [
        _svg.lines("One <point> & more", "x", "y", [Line("only", {10: 3.0}, linear=True)]),
        _svg.bars("None of one", "y", ["a", "b"], [Bars("one", [0.5, None], [None, 1.0])]),
        _tables.jobs_plot("Long words", [row("fresh clone before compact", "bayou", 1.0, delay_ms=20.0)] * 6),
        _svg.bars("Powers of ten", "y", ["a"], [Bars("one", [10.0]), Bars("two", [10.0])], logarithmic=True),
    ],
)
def test_a_plot_is_well_formed_and_inside_its_frame(svg):
    for element in ElementTree.fromstring(svg).iter():
        for name, most in (("x", _svg.WIDTH), ("y", _svg.HEIGHT), ("cx", _svg.WIDTH), ("cy", _svg.HEIGHT)):
            assert 0 <= float(element.get(name, 0)) <= most
        assert float(element.get("height", 0)) >= 0


def test_without_a_result_the_report_says_that_it_was_not_measured():
    text, plots = report.render({})

    assert "Nothing was measured." in text
    for part in report.PARTS:
        assert f"Not measured (`{part.command} --json bench/results/{part.key}.json`)." in text
    assert set(plots) == {"cost.svg"}  # which is computed


def test_every_plot_of_a_report_is_shown_in_it():
    results = {
        "sync": result("sync", *rows()),
        "bulk": result("bulk", *rows(100_000)),
        "million": result("million", *(Row("push", n, "bayou", (n / 100,)) for n in (1_000, 2_000))),
        "content": result("content", row("query", "packs", 1.0), row("query", "one object each", 11.0)),
        "puts": result("puts", row("single puts", "bayou", 1.0), row("fresh clone", "bayou", 2.0, delay_ms=20.0)),
    }

    text, plots = report.render(results)

    assert "Not measured" not in text
    assert [name for name in plots if f"](plots/{name})" not in text] == []
    assert text.count("2031-05-04, commit abc1234") == text.count("A note.") == len(report.PARTS)
    assert "2 cores, 8 GB of memory, Linux 6.1, Python 3.11.7, rclone 1.75." in text
    for svg in plots.values():
        assert texts(svg)


def test_a_report_replaces_what_is_between_the_markers_and_nothing_else():
    part, _ = report.render({})
    once = report.replace_part(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", part)

    assert once == f"before\n{part}\nafter\n"
    assert report.replace_part(once, part) == once
    with pytest.raises(SystemExit, match="no place"):
        report.replace_part("a page without markers\n", part)


def test_the_page_and_its_plots_are_what_the_committed_results_say():
    """`./dev bench report` was run after the last measurement, and no plot was made by another way."""
    part, plots = report.render(report.read_results(report.RESULTS))

    assert part in report.DOCUMENT.read_text()
    assert {path.name: path.read_text() for path in report.PLOTS.glob("*.svg")} == plots
