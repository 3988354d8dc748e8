"""What benchmarks measured: rows, their medians, and the files that hold them."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
from _results import Machine, Requests, Result, Row, load, save, this_machine


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    rows = (
        Row("cold push", 10_000, "bayou", (1.0, 2.0), (0.5, 0.6), (Requests(put=7),), ratio=0.3, limit=0.5),
        Row("cold push", 10_000, "rclone", (3.0, 4.0)),
    )
    result = Result("sync", "2031-05-04", "abc1234", Machine(2, 8, "Linux 6", "3.11", {"rclone": "1.2"}), rows)

    save(result, tmp_path / "new" / "sync.json")

    assert load(tmp_path / "new" / "sync.json") == result


def test_a_result_that_is_not_there_is_none_and_a_damaged_one_is_an_error(tmp_path):
    (tmp_path / "damaged.json").write_text('{"rows": 7}')

    assert load(tmp_path / "sync.json") is None
    with pytest.raises(msgspec.ValidationError):
        load(tmp_path / "damaged.json")


def test_a_row_tells_medians_and_whether_its_ratio_is_within_the_limit():
    requests = tuple(Requests(put=number, get=1) for number in (10, 12, 50))
    row = Row("no-op", 1, "bayou", (1.0, 9.0, 2.0), (0.1, 0.3, 0.2), requests, ratio=0.2, limit=0.2)

    assert (row.time, row.cpu_time, row.request_count, row.within) == (2.0, 0.2, 13, True)
    assert msgspec.structs.replace(row, ratio=0.21).within is False
    assert msgspec.structs.replace(row, limit=None).within is None
    assert Row("no-op", 1, "bayou", (1.0,)).request_count is None


def test_the_machine_is_described_without_its_name_or_a_path():
    told = msgspec.json.encode(this_machine()).decode()

    assert this_machine().cores >= 1
    assert {"rclone", "s5cmd", "SeaweedFS", "obstore"} <= this_machine().versions.keys()
    assert "/" not in told
    assert str(Path.home()) not in told
    assert socket.gethostname() not in told
