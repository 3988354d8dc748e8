"""What a command has kept, and what goes on, as its hint tells it."""

from __future__ import annotations

import pytest

from bayou.cli.errors import kept_hint
from bayou.core import activity, kept
from bayou.core.progress import NoProgress


@pytest.fixture(autouse=True)
def fresh():
    kept.begin("bayou datastore sync")
    yield
    kept.begin()


def test_as_long_as_no_file_is_counted_the_hint_says_that_nothing_happened():
    kept.now(nothing="nothing was transferred")
    assert kept_hint() == "nothing was transferred; to go on: `bayou datastore sync`"

    kept.pulled(2, 1500)
    assert kept_hint() == "2 files (1.5 KB) pulled, and kept; to go on: `bayou datastore sync`"


def test_what_is_committed_is_no_longer_said_to_have_only_arrived():
    kept.arrived(3, 3000)
    kept.pushed(2, 2000)

    assert kept_hint().startswith(
        "2 files (2.0 KB) pushed; 1 file (1.0 KB) already in the store, and not sent again; to go on: "
    )


def test_a_later_moment_names_another_command():
    kept.now("nothing was saved")
    kept.now("it is saved here, and not pushed yet", go_on="bayou datastore sync --push")

    assert kept_hint() == "it is saved here, and not pushed yet; to go on: `bayou datastore sync --push`"


def test_what_is_returned_does_not_change_any_more():
    before = kept.current()
    kept.pulled(1, 1)

    assert before.pulled.files == 0


def test_without_a_watcher_nothing_is_told_and_nothing_fails():
    activity.moved(5)
    activity.seen(1)
    activity.remark("busy")
    with activity.waiting("for nothing"):
        assert isinstance(activity.current(), NoProgress)
    assert not activity.is_watched()
