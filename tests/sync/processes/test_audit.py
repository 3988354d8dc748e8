"""The audit of compactions and collections is able to fail: it names what is damaged, lost or wrongly deleted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from bayou.core.clock import format_ms
from bayou.core.ids import ulid
from bayou.index.log import Kind
from bayou.objectstore import keys, open_store
from tests import api
from tests.maintenance.pack_damages import overwrite
from tests.sync.conftest import Team
from tests.sync.indexes import commit_rows, content_of, entries_of
from tests.sync.processes.audit import audit
from tests.sync.processes.history import Version, read_history
from tests.sync.processes.judge import Account
from tests.sync.processes.upkeep import Deleting, complete
from tests.sync.processes.worker import Begun, Done, Line, Synced, file_bytes
from tests.sync.simulation.places import quick_directory

ONE, UNIT = "files/one", "data/t/m/first/1"
RAW = f"{UNIT}/raw"
FIRST, SECOND, THIRD, COLLECTION, COMPACTION = range(1, 6)
"""The versions of the scene, by their place in the history; an empty one comes first."""

GONE_BY = -2.0


@dataclass
class Scene:
    """A store in which one file was replaced and a version was added, and which was then collected and compacted.

    `archive` has every object that the store ever had, and `files` is what the index names.
    """

    root: Path
    lines: tuple[Line, ...]
    files: dict[str, bytes]

    @property
    def team(self) -> Team:
        return Team(self.root, (self.root / "store").as_uri(), {})

    def history(self) -> list[Version]:
        return read_history(open_store((self.root / "archive").as_uri()))

    def wrong(self, *deletions: Deleting, files: dict[str, bytes] | None = None) -> list[str]:
        """Audit the store; unless `files` are given, a fresh clone has what the index names."""
        store = self.team.store()
        if files is None:
            files = {path: self.files[path] for path in entries_of(store)}
        return audit(store, self.history(), [Account("a", self.lines, {})], deletions, files)

    def commit(self, path: str, kind: Kind = "push", **changes: object) -> None:
        """Commit an entry with other fields, or its loss; the archive has that version, too."""
        store = self.team.store()
        entry = msgspec.structs.replace(entries_of(store)[path], **changes) if changes else None
        commit_rows(store, {path: entry}, kind)
        (self.root / "archive" / keys.HEAD).unlink()
        complete(self.root / "archive", store)

    def deletion(self, wanted: Sequence[keys.Key], before: int, count: int = 1) -> Deleting:
        return Deleting(tuple(wanted), count, format_ms(before))


@pytest.fixture(scope="module")
def made() -> Iterator[Scene]:
    with quick_directory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayou.objectstore.probe.ROUNDS", 0)  # whether the store can swap is not in question here
        yield make_scene(root)


def make_scene(root: Path) -> Scene:
    (root / "store").mkdir()
    archive = root / "archive"
    team = Scene(root, (), {}).team
    clone = team.clone("a")
    lines: list[Line] = []
    for number, paths in enumerate(([ONE], [ONE], [RAW, f"{UNIT}/metadata.yaml"]), 1):
        saw = dict.fromkeys(paths, "a-1" if number == SECOND else None)
        lines += [Begun(number, dict.fromkeys(paths, f"a-{number}"), saw), Done(number)]
        clone.write_all({path: file_bytes(path, f"a-{number}", 100) for path in paths})
        commit = clone.push().commit
        assert commit is not None
        lines.append(Synced(number, commit.commit, commit.seq, (), finished=True, at=0))
        complete(archive, team.store())
    api.collect(clone.repo, dry_run=False, grace_s=GONE_BY)
    assert api.compact(clone.repo, dry_run=False).files == 3
    (archive / keys.HEAD).unlink()
    complete(archive, team.store())
    return Scene(root, tuple(lines), content_of(team.store()))


@pytest.fixture
def scene(made: Scene, tmp_path: Path) -> Scene:
    """The scene, for one test to damage."""
    for name in ("store", "archive"):
        shutil.copytree(made.root / name, tmp_path / name)
    return replace(made, root=tmp_path)


def pack_of(version: Version, path: str) -> keys.Key:
    return version.entries[path].key


def test_a_store_that_was_collected_and_compacted_rightly_has_nothing_wrong(scene: Scene) -> None:
    history = scene.history()
    assert [version.kind for version in history[FIRST:]] == ["push", "push", "push", "gc", "compact"]
    clone = scene.team.clone("fresh")
    clone.pull()
    deletion = scene.deletion([pack_of(history[FIRST], ONE)], history[SECOND].at + 1)
    assert scene.wrong(deletion, files=clone.files) == []


def test_a_missing_pack_is_told(scene: Scene) -> None:
    key = pack_of(scene.history()[COMPACTION], ONE)
    scene.team.store().delete([key])
    assert scene.wrong() == [
        f"{path} is in the index, and the store has no {key}" for path in (f"{UNIT}/metadata.yaml", RAW, ONE)
    ]


def test_changed_bytes_in_a_pack_are_told(scene: Scene) -> None:
    store = scene.team.store()
    overwrite(store, entries_of(store)[ONE])
    key = pack_of(scene.history()[COMPACTION], ONE)
    assert scene.wrong() == [f"{ONE} has other bytes in {key} than its entry says"]


def test_what_a_fresh_clone_lacks_or_has_besides_is_told(made: Scene) -> None:
    files = dict(made.files)
    files[RAW] = b"other"
    files["files/more"] = files.pop(ONE)
    assert made.wrong(files=files) == [
        f"{RAW} has other bytes in a fresh clone",
        f"{ONE} is missing in a fresh clone",
        "a fresh clone has files/more, and the index has not",
    ]


def test_an_acknowledged_file_that_a_push_drops_is_told(scene: Scene) -> None:
    scene.commit(ONE)
    assert scene.wrong() == [f"a's push 3 speaks for {ONE} = a-2, and version 7 lacks it"]


def test_an_entry_that_a_compaction_or_a_collection_drops_is_told(scene: Scene) -> None:
    scene.commit(ONE, kind="compact")
    scene.commit(RAW, kind="gc")
    wrong = scene.wrong()
    assert [text.partition(" from ")[0] for text in wrong[:2]] == [
        f"version 7, of a compact, changes {ONE}",
        f"version 8, of a gc, changes {RAW}",
    ]
    assert [text.partition(" = ")[0] for text in wrong[2:]] == [
        f"a's push 3 speaks for {ONE}",
        f"a's push 4 speaks for {RAW}",
    ]


def test_p4_a_compaction_that_changes_the_push_of_an_entry_is_told(scene: Scene) -> None:
    scene.commit(ONE, kind="compact", push=ulid())
    (wrong,) = scene.wrong()
    assert wrong.startswith(f"version 7, of a compact, changes {ONE} from Entry(")


def test_p6_the_pack_and_the_nodes_of_a_retained_root_must_stay(made: Scene) -> None:
    """A root is retained if it was replaced at `gc.before` or later."""
    history = made.history()
    for key in history[FIRST].named:
        deletion = made.deletion([keys.as_listed(key)], history[SECOND].at)
        (wrong,) = made.wrong(deletion)
        assert wrong.startswith(f"{key} was deleted when")
        assert wrong.endswith("version 2, which is retained, names it")


def test_v5_what_the_newest_root_names_must_stay_however_late_the_collection(made: Scene) -> None:
    history = made.history()
    deletion = made.deletion([pack_of(history[COMPACTION], ONE)], history[COMPACTION].at + 10**9)
    assert len(made.wrong(deletion)) == 1


def test_the_latest_collection_in_the_head_decides_what_is_retained(made: Scene) -> None:
    """One collection deletes the nodes of a root and is killed. The next one, whose own `before` is earlier, skips the
    nodes that are missing and deletes the packs: the head has the `before` of the first."""
    history = made.history()
    (node,) = (key for key in history[FIRST].named if keys.parse_node(key) is not None)
    late = history[SECOND].at + 1
    nodes = made.deletion([keys.as_listed(node)], late)
    packs = made.deletion([pack_of(history[FIRST], ONE)], late, count=2)
    assert made.wrong(nodes, packs) == []


def test_p6_a_time_of_collections_that_goes_back_is_told(made: Scene) -> None:
    history = made.history()
    gone = [pack_of(history[FIRST], ONE)]
    late, early = (made.deletion(gone, history[SECOND].at + ms, count) for ms, count in ((2, 1), (1, 2)))
    (wrong,) = made.wrong(early, late)
    assert wrong == f"gc.before went back from {late} to {early}"


def test_v5_deleting_what_bayou_did_not_write_or_before_any_announcement_is_told(made: Scene) -> None:
    history = made.history()
    foreign = made.deletion([keys.as_listed("elsewhere/notes")], history[COMPACTION].at)
    early = Deleting((pack_of(history[FIRST], ONE),), 0, None)
    assert made.wrong(foreign, early) == [
        "elsewhere/notes was deleted, and Bayou did not write it",
        f"['{pack_of(history[FIRST], ONE)}'] were deleted, and no collection was announced",
    ]
