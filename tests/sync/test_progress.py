"""What a sync tells whoever watches: its stages, and in each as much as was really done (V17)."""

from __future__ import annotations

from bayou.sync.report import SyncOptions
from tests import api
from tests.sync.conftest import Clone, Team

LARGE = 200_000


class Stages:
    """Adds up what it is told of each stage: its name, what was planned, what was done."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | None, int | None]] = []
        self.done: list[tuple[int, int]] = []
        self.skipped = 0
        self.ended = 0

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        self.seen.append((what, files, bytes))
        self.done.append((0, 0))

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        self.done[-1] = (self.done[-1][0] + files, self.done[-1][1] + bytes)

    def skip(self, bytes: int) -> None:  # noqa: A002
        self.skipped += bytes

    def share(self, done: float) -> None:
        assert self.seen[-1][1:] == (None, None), "what is counted has no share"

    def end(self) -> None:
        self.ended += 1


def watched(clone: Clone) -> Stages:
    stages = Stages()
    api.sync(clone.repo, SyncOptions(), progress=stages)
    assert stages.ended == len(stages.seen)
    return stages


def test_a_sync_tells_of_hashing_pushing_and_pulling(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"files/{number}": b"%d" % number * LARGE for number in range(3)} | {"files/small": b"x"})

    pushed, pulled = watched(a), watched(b)

    sizes = 3 * LARGE + 1
    assert pushed.done[pushed.seen.index(("hashing", 3, 3 * LARGE))] == (3, 3 * LARGE)
    assert [what for what, *_ in pushed.seen][-1] == "committing"
    assert pushed.done[pushed.seen.index(("pushing", 4, sizes))] == (4, sizes)
    assert pulled.done[pulled.seen.index(("pulling", 4, sizes))] == (4, sizes)


def test_small_files_are_not_worth_a_stage_of_hashing(team: Team) -> None:
    a = team.clone("a")
    a.write("files/small", "x")

    assert [what for what, *_ in watched(a).seen if what == "hashing"] == []
