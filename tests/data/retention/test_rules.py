"""What may go, as tables: rows, a time, and what is known of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.data.catalog.rows import VersionRow
from bayou.data.retention.rules import evaluate

NOW = datetime(2030, 3, 31, 12, tzinfo=UTC)


def row(version: int, age: timedelta = timedelta(0), **fields) -> VersionRow:
    """One version of an item, written so long before now."""
    created = (NOW - age).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {"name": "n", "type": "t", "model_id": "m", "created_at": created} | fields
    return VersionRow(model="web", version=version, id="i", size=1, sha256=None, content_type="text/plain", **known)


def going(rows, gone_runs=()) -> dict[int, str]:
    """The versions of one item that may go, and why."""
    evaluation = evaluate(rows, NOW, lambda row: row.run in gone_runs)
    return {one.row.version: one.why for one in evaluation.versions}


DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("lifetime", "just_young_enough", "too_old"),
    [
        ("10m", 9 * MINUTE, 10 * MINUTE),
        ("24h", DAY - MINUTE, DAY),
        ("7d", 6 * DAY, 7 * DAY),
        ("4w", 27 * DAY, 28 * DAY),
        ("6mo", NOW - datetime(2029, 10, 1, 12, tzinfo=UTC), NOW - datetime(2029, 9, 30, 12, tzinfo=UTC)),
        ("1y", NOW - datetime(2029, 3, 31, 13, tzinfo=UTC), NOW - datetime(2029, 3, 31, 12, tzinfo=UTC)),
    ],
)
def test_a_version_goes_when_its_lifetime_is_over(lifetime, just_young_enough, too_old):
    assert going([row(1, just_young_enough, lifetime=lifetime)]) == {}
    assert going([row(1, too_old, lifetime=lifetime)]) == {1: "expired"}


@pytest.mark.parametrize("lifetime", [None, "infinite"])
def test_what_has_no_end_never_goes(lifetime):
    assert going([row(1, 36500 * DAY, lifetime=lifetime)]) == {}


def test_every_version_has_the_lifetime_that_it_was_written_with():
    rows = [row(1, 9 * DAY, lifetime="7d"), row(2, 9 * DAY), row(3, 9 * DAY, lifetime="4w"), row(4, lifetime="7d")]

    assert going(rows) == {1: "expired"}


def test_a_version_of_the_future_is_young():
    """A clock that is wrong elsewhere deletes nothing here."""
    assert going([row(1, -400 * DAY, lifetime="10m"), row(2, -400 * DAY, keep="10m")]) == {}


@pytest.mark.parametrize(
    ("keep", "left"),
    [("1", [5]), ("2", [4, 5]), ("5", [1, 2, 3, 4, 5]), ("9", [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])],
)
def test_the_newest_versions_are_kept(keep, left):
    rows = [row(version, keep=keep) for version in range(1, 6)]

    assert sorted(set(range(1, 6)) - set(going(rows))) == left


def test_keep_may_be_a_time_and_never_takes_the_newest():
    rows = [row(version, (50 - 10 * version) * DAY, keep="25d") for version in range(1, 4)]
    old = [row(version, 100 * DAY, keep="25d") for version in range(1, 4)]

    assert going(rows) == {1: "surplus", 2: "surplus"}
    assert going(old) == {1: "surplus", 2: "surplus"}


def test_the_newest_version_says_how_many_are_kept_of_all():
    assert going([row(1, keep="1"), row(2, keep="1"), row(3)]) == {}
    assert going([row(1), row(2), row(3, keep="1")]) == {1: "surplus", 2: "surplus"}


def test_what_goes_anyway_does_not_count_as_kept():
    """Else `keep 1` and a lifetime together would leave nothing of an item that still has versions to keep."""
    rows = [row(1), row(2, keep="1"), row(3, DAY, lifetime="10m", keep="1")]

    assert going(rows) == {1: "surplus", 3: "expired"}


def test_what_is_deleted_is_neither_kept_nor_collected():
    rows = [row(1, keep="1"), row(2, DAY, lifetime="10m", keep="1", deleted=True)]

    assert going(rows) == {}


def test_items_are_judged_apart():
    rows = [
        row(version, type=kind, model_id=model, name=name, keep="1")
        for kind, model, name in (
            ("t", "m", "n"),
            ("t", "m", "o"),
            ("t", "k", "n"),
            ("t/u", "m", "n"),
            ("t/u/v", "m", "n"),
        )
        for version in (1, 2)
    ]

    evaluation = evaluate(rows, NOW, lambda row: False)

    assert len(evaluation.versions) == 5
    assert {one.row.version for one in evaluation.versions} == {1}


def test_f119_data_of_a_run_goes_only_when_the_run_is_known_to_be_gone():
    rows = [
        row(1, 900 * DAY, lifetime="run", run="R1"),
        row(2, 900 * DAY, lifetime="run", run="R2"),
        row(3, 900 * DAY, lifetime="run"),
    ]

    assert going(rows, gone_runs=["R2"]) == {2: "expired"}
    assert going(rows) == {}


def test_runs_are_not_looked_for_on_behalf_of_other_data():
    def never(row):
        raise AssertionError("nobody asked")

    assert evaluate([row(1, run="R1", lifetime="10m")], NOW, never).versions == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"lifetime": "soon"},
        {"lifetime": "7d", "created_at": "yesterday"},
        {"lifetime": "7d", "created_at": "2020-01-01T00:00:00"},
        {"keep": "lots"},
        {"keep": "0"},
    ],
)
def test_f121_what_cannot_be_judged_stays_and_is_named(fields):
    """V5: a reason to delete is a reason that somebody can read."""
    evaluation = evaluate([row(1), row(2, **fields)], NOW, lambda row: True)

    assert evaluation.versions == ()
    assert len(evaluation.unclear) == 1
    assert evaluation.unclear[0].startswith("data/t/m/n/2/metadata.yaml: ")


ages = st.integers(0, 100).map(lambda days: days * DAY)
texts = st.sampled_from([None, "infinite", "10d", "4w", "run"])
keeps = st.sampled_from([None, "1", "3", "20d"])


@given(st.lists(st.tuples(ages, texts, keeps, st.booleans(), st.sampled_from(["R1", "R2"])), max_size=12))
def test_collecting_once_is_collecting_for_good(versions):
    """A second collection at the same time finds nothing, and every version that went had a reason of its own."""
    rows = [
        row(number, age, lifetime=lifetime, keep=keep, deleted=deleted, run=run)
        for number, (age, lifetime, keep, deleted, run) in enumerate(versions, 1)
    ]
    gone = going(rows, ["R1"])

    left = [one for one in rows if one.version not in gone]
    assert going(left, ["R1"]) == {}
    assert not {one.version for one in rows if one.deleted} & set(gone)
    live = [one.version for one in left if not one.deleted]
    surplus = {version for version, why in gone.items() if why == "surplus"}
    assert all(version < max(live) for version in surplus)
