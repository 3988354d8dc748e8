"""The files that benchmarks make, and how they compare the tools."""

from __future__ import annotations

import json
import zlib

import _tools
import pytest
from _tools import Measured, Ran


@pytest.mark.parametrize("content", ["random", "json"])
def test_files_are_all_different_and_as_many_as_were_asked_for(tmp_path, content):
    _tools.make_files(tmp_path / "tree", 101, 500, content)

    found = [path.read_bytes() for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    assert _tools.files_in(tmp_path / "tree") == len(found) == len(set(found)) == 101
    assert max(map(len, found)) <= 500


def test_json_content_compresses_and_random_content_does_not(tmp_path):
    for content in ("random", "json"):
        _tools.make_files(tmp_path / content, 20, 5_000, content)

    def compressed(content: str) -> float:
        data = [path.read_bytes() for path in (tmp_path / content).rglob("*") if path.is_file()]
        return sum(len(zlib.compress(one)) for one in data) / sum(map(len, data))

    assert compressed("random") > 0.95
    assert compressed("json") < 0.5
    assert json.loads(_tools.json_record(7, 5_000))["id"] == 7


def test_a_ratio_is_the_median_of_the_rounds_to_the_better_peer_of_each():
    found = Measured(100)
    times = {"bayou": (1.0, 9.0, 1.0), "rclone": (2.0, 9.0, 8.0), "s5cmd": (4.0, 3.0, 4.0)}
    for tool, taken in times.items():
        for seconds in taken:
            found.add("cold push", tool, Ran(seconds, cpu=0.5, memory_mb=10.0))

    ours, *others = found.rows({"cold push": 0.4})

    assert (ours.tool, ours.ratio, ours.limit, ours.within) == ("bayou", 0.5, 0.4, False)  # of 0.5, 3.0 and 0.25
    assert [(one.ratio, one.limit) for one in others] == [(None, None), (None, None)]


def test_every_tool_is_first_once_in_three_rounds():
    assert [_tools.in_turn(_tools.TOOLS, turn)[0] for turn in range(4)] == ["bayou", "rclone", "s5cmd", "bayou"]


def test_requests_are_counted_as_they_are_charged():
    counted = _tools.requests_of({"PUT": 5, "POST": 1, "GET": 3, "LIST": 2, "DELETE": 4})

    assert (counted.put, counted.get, counted.list, counted.other, counted.total) == (6, 3, 2, 4, 15)
