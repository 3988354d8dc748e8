"""Crash at every request, and between every two local steps: a plain retry ends where an undisturbed run does (V19).

Everything is tried twice: with each file as an object of its own, and with small files in packs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bayou.sync.report import Mode
from bayou_testing.faulty import Crash, Fault, When, crash, lost_answer
from tests.sync.crash_scene import Outcome, Scene, mortal, run
from tests.sync.simulation.places import quick_directory

MODES = ["push", "pull", "sync"]
# A sync sends what a push and a pull send: what is only repeated need not be tried on all three each time.
REPEATED = [pytest.param("push", marks=pytest.mark.soak), pytest.param("pull", marks=pytest.mark.soak), "sync"]
GET_AND_PUT = {"get", "put"}
FAILED = ["push", "pull", pytest.param("sync", marks=pytest.mark.soak)]


@pytest.fixture(scope="module", params=[0, 256 << 10], ids=["objects", "packs"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with quick_directory() as directory:
        made = Scene(directory, request.param)
        made.set_up()
        yield made


def undisturbed(scene: Scene, mode: Mode) -> tuple[Outcome, list[str]]:
    """Return what a command leaves behind when nothing happens to it, and the requests that it takes."""
    with scene.play() as play:
        requests = play.command(mode)
        return play.outcome(), requests


def test_the_scene_has_everything_to_do(scene: Scene) -> None:
    with scene.play() as play:
        report = run(play, "sync")
        assert (report.pushed.files, report.pushed.deleted) == (5, 4)
        assert (report.pulled.files, report.pulled.deleted) == (5, 2)
        assert [conflict.path for conflict in report.conflicts] == ["audit/both"]
        outcome = play.outcome()
        assert outcome.in_sync
        assert outcome.journal == set()
        assert outcome.fresh == outcome.files
        assert outcome.kept == {("audit/both", b"of A")}
        assert outcome.entries["files/found/kept"] == "found"
        head = play.oracle.versions[-1].head
        assert head.root is not None
        assert head.root.level >= 1
        assert head.trash is not None
    _, requests = undisturbed(scene, "sync")
    packs = {request.split()[0] for request in requests if "/packs/" in request}
    objects = {request.split()[0] for request in requests if "~" in request}
    assert (packs, objects) == ((GET_AND_PUT, set()) if scene.pack_below else (set(), GET_AND_PUT))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_at_any_request_is_repeated_without_a_trace(scene: Scene, mode: Mode, when: When) -> None:
    expected, requests = undisturbed(scene, mode)
    for number, request in enumerate(requests, 1):
        with scene.play() as play:
            error = play.died(mode, [Fault(nth=number, when=when, error=crash)])
            assert isinstance(error, Crash), (number, request, error)
            play.command(mode)
            assert play.outcome() == expected, f"killed {when} request {number}, {request}"


@pytest.mark.parametrize("mode", REPEATED)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost_is_asked_for_again(scene: Scene, mode: Mode, when: When) -> None:
    expected, requests = undisturbed(scene, mode)
    for number, request in enumerate(requests, 1):
        with scene.play() as play:
            play.command(mode, [Fault(nth=number, when=when, error=lost_answer)])
            assert play.outcome() == expected, f"lost {when} request {number}, {request}"


@pytest.mark.parametrize("mode", FAILED)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_command_that_any_request_ends_is_finished_by_the_next(scene: Scene, mode: Mode, when: When) -> None:
    """The error is not retried. A commit that it hides is found, in this run or in the next."""
    expected, requests = undisturbed(scene, mode)
    for number, request in enumerate(requests, 1):
        with scene.play() as play:
            play.died(mode, [Fault(nth=number, when=when, error=lost_answer)])
            play.command(mode)
            assert play.outcome() == expected, f"failed {when} request {number}, {request}"


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_process_that_dies_between_any_two_local_steps_is_repeated_without_a_trace(scene: Scene, mode: Mode) -> None:
    expected, _ = undisturbed(scene, mode)
    with scene.play() as play, mortal(None) as points:
        play.command(mode)
    assert sum(point.startswith("rename") for point in points) > 4
    assert sum(point == "commit" for point in points) > 4
    for number, point in enumerate(points, 1):
        with scene.play() as play:
            with mortal(number):
                error = play.died(mode, [])
            assert isinstance(error, Crash), (number, point, error)
            play.command(mode)
            assert play.outcome() == expected, f"killed before step {number}, {point}"


def test_crashes_on_the_way_of_a_retry_are_survived_too(scene: Scene) -> None:
    """One crash after the other, at points further and further on, until the command gets through."""
    expected, requests = undisturbed(scene, "sync")
    with scene.play() as play:
        for number in range(1, len(requests) + 5):
            if play.died("sync", [Fault(nth=number, when="after", error=crash)]) is None:
                break
        assert play.outcome() == expected
