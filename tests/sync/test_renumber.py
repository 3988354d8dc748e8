"""Two machines made the same version: the later committer renumbers its own, and both survive (docs/design.md, 11)."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from bayou.data.sync_hooks import renumber
from bayou.repo import init_repo
from bayou.sync.report import SyncReport
from bayou.sync.service import Datastore
from bayou.sync.transfer import apply, executor, pull
from bayou_testing.faulty import Crash, Fault, crash
from tests import api
from tests.sync import children
from tests.sync.conftest import Clone, Team, Wire

ITEM = "data/@org/shell/model/log"


def version(number: int, content: str, *, item: str = ITEM, deleted: bool = False) -> dict[str, bytes]:
    """Return the files of a version as the repositories write them."""
    metadata = f'id: "i"\nversion: {number}\nsaid: "{content}"\ndeleted: {str(deleted).lower()}\n'.encode()
    files = {} if deleted else {f"{item}/{number}/raw": content.encode()}
    return files | {f"{item}/{number}/metadata.yaml": metadata}


def versions(clone: Clone, item: str = ITEM) -> dict[int, str]:
    """Return what each version in a tree says, from its raw file and its metadata, which must agree."""
    found = {}
    for path, metadata in clone.files.items():
        # What a killed process was about to assemble is a temporary that everybody ignores.
        if path.startswith(f"{item}/") and path.endswith("/metadata.yaml") and "/.bayou-" not in path:
            number = int(path.split("/")[-2])
            assert f"version: {number}\n".encode() in metadata, "the metadata knows its number"
            said = re.search(rb'said: "(.*)"', metadata)
            assert said is not None
            if b"deleted: false" in metadata:
                assert clone.files[path.replace("metadata.yaml", "raw")] == said[1], "and is that of its content"
            found[number] = said[1].decode()
    return found


def sync(clone: Clone, **options: Any) -> SyncReport:
    return clone.sync(renumber=renumber, **options)


@pytest.fixture
def pair(team: Team) -> tuple[Clone, Clone]:
    """Two clones in sync, at version 2; then each makes version 3, and A is first to push."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "first") | version(2, "second"))
    sync(a)
    sync(b)
    a.write_all(version(3, "of a"))
    b.write_all(version(3, "of b"))
    sync(a)
    return a, b


BOTH = {1: "first", 2: "second", 3: "of a", 4: "of b"}


@pytest.mark.parametrize("mode", ["sync", "push"])
def test_both_versions_survive_and_everybody_sees_the_same(team: Team, pair: tuple[Clone, Clone], mode: str) -> None:
    a, b = pair

    report = sync(b, mode=mode)
    sync(a)
    fresh = team.clone("fresh")
    sync(fresh)

    assert versions(a) == versions(b) == versions(fresh) == BOTH
    assert (report.pushed.renumbered, report.conflicts, report.exit_code) == (1, [], 0)
    assert report.warnings == [f"{ITEM}/3 was made by two machines: the one of this machine is {ITEM}/4 now"]
    assert (report.pushed.files, b.status().journal_paths) == (2, 0)
    assert not b.repo.conflicts.exists()


def test_v15_a_pull_renumbers_here_and_the_next_push_carries_it(
    team: Team, pair: tuple[Clone, Clone], wire: Wire
) -> None:
    a, b = pair
    wire.seen.clear()

    pulled = sync(b, mode="pull")
    sent = {one.verb for one in wire.seen}
    again = sync(b, mode="pull")
    pushed = sync(b, mode="push")
    sync(a)

    assert (pulled.pushed.renumbered, pulled.exit_code, sent) == (1, 0, {"get"})
    assert (again.pushed.renumbered, pushed.pushed.renumbered, pushed.pushed.files) == (0, 0, 2)
    assert versions(a) == versions(b) == BOTH


def test_a_pull_of_the_model_renumbers_too(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    from bayou.sync.plan.policy import ModelRef

    with Datastore(b.repo, renumber=renumber) as datastore:
        pulled = datastore.sync.pull_changed([ModelRef("@org/shell", "model", "m")])
        datastore.sync.push_changed()
    sync(a)

    assert pulled.pushed.renumbered == 1
    assert versions(a) == versions(b) == BOTH


def test_a_dry_run_says_so_and_changes_nothing(pair: tuple[Clone, Clone]) -> None:
    _, b = pair
    before = b.files

    report = sync(b, dry_run=True)

    assert {(one.path, one.action) for one in report.actions} == {(path, "renumber") for path in version(3, "")}
    assert (b.files, b.status().journal_paths) == (before, 2)


def test_three_machines_that_made_one_number_have_three_versions(team: Team) -> None:
    clones = [team.clone(name) for name in "abc"]
    for clone in clones:
        clone.write_all(version(1, f"of {clone.repo.root.name}"))

    reports = [sync(clone) for clone in clones]
    for clone in clones:
        sync(clone)

    assert [report.pushed.renumbered for report in reports] == [0, 1, 1]
    assert [versions(clone) for clone in clones] == [{1: "of a", 2: "of b", 3: "of c"}] * 3


def test_several_versions_of_several_items_keep_their_order(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    other = f"{ITEM}-2"
    for clone in (a, b):
        name = clone.repo.root.name
        for number in (1, 2, 3):
            clone.write_all(version(number, f"{name}{number}"))
        clone.write_all(version(1, name, item=other))

    sync(a)
    report = sync(b)
    sync(a)

    assert report.pushed.renumbered == 4
    assert versions(a) == versions(b) == {1: "a1", 2: "a2", 3: "a3", 4: "b1", 5: "b2", 6: "b3"}
    assert versions(a, other) == versions(b, other) == {1: "a", 2: "b"}


def test_the_new_number_is_above_a_deleted_one_that_only_the_store_knows(team: Team) -> None:
    """A number is never used twice: of the highest one, deleted, the metadata is left."""
    a, b = team.clone("a"), team.clone("b")
    b.write_all(version(1, "of b"))
    a.write_all(version(1, "of a"))
    a.write_all(version(7, "gone", deleted=True))
    sync(a)

    sync(b)

    assert versions(b) == {1: "of a", 7: "gone", 8: "of b"}


def test_the_new_number_is_above_one_that_was_made_here_since(pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    b.write_all(version(4, "next of b"))

    report = sync(b)
    sync(a)

    assert report.pushed.renumbered == 1
    assert versions(a) == versions(b) == {1: "first", 2: "second", 3: "of a", 4: "next of b", 5: "of b"}


def test_the_same_bytes_under_one_number_are_one_version(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    for clone in (a, b):
        clone.write_all(version(1, "same"))

    sync(a)
    report = sync(b)

    assert (report.pushed.renumbered, report.conflicts, versions(b)) == (0, [], {1: "same"})


def test_a_version_whose_raw_files_are_equal_is_renumbered_whole(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "x"))
    b.write_all(
        {f"{ITEM}/1/raw": b"x", f"{ITEM}/1/metadata.yaml": b'version: 1\nsaid: "x"\ntags: {}\ndeleted: false\n'}
    )
    sync(a)

    report = sync(b)

    assert (report.pushed.renumbered, versions(b)) == (1, {1: "x", 2: "x"})


def test_a_version_that_both_had_and_both_changed_is_a_conflict(team: Team) -> None:
    """Streaming data that two machines appended to: nobody's bytes are lost, and nobody's are mixed."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "x"))
    sync(a)
    sync(b)
    for clone in (a, b):
        with Datastore(clone.repo) as datastore:
            datastore.tree.append(f"{ITEM}/1/raw", clone.repo.root.name.encode())
    sync(a)

    report = sync(b)

    assert (report.pushed.renumbered, report.exit_code) == (0, 3)
    assert [one.path for one in report.conflicts] == [f"{ITEM}/1/raw"]


@pytest.mark.parametrize("metadata", [b"no version here\n", b"version: 1\nversion: 1\n", b"version: one\n", None])
def test_what_has_no_number_to_rewrite_is_a_conflict(team: Team, metadata: bytes | None) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "of a"))
    sync(a)
    b.write_all({f"{ITEM}/1/raw": b"of b"} | ({f"{ITEM}/1/metadata.yaml": metadata} if metadata else {}))

    report = sync(b)

    assert (report.pushed.renumbered, report.exit_code, versions(b)) == (0, 3, {1: "of a"})
    assert f"{ITEM}/1/raw" in {one.path for one in report.conflicts}


def test_a_version_that_is_still_being_written_is_a_conflict(pair: tuple[Clone, Clone]) -> None:
    _, b = pair
    with Datastore(b.repo) as datastore:
        datastore.sync.mark_dirty(f"{ITEM}/3")

        report = sync(b)

    assert (report.pushed.renumbered, report.exit_code) == (0, 3)


def test_a_file_that_only_lies_there_is_no_version_of_ours(team: Team) -> None:
    """After the state is lost, nobody can tell whether a version was deleted since: it must not come back."""
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "x"))
    sync(a)
    sync(b)
    b.lose_state()
    a.delete(f"{ITEM}/1/raw")
    a.write_all(version(1, "x", deleted=True))
    sync(a)

    report = sync(b)

    assert (report.pushed.renumbered, report.pushed.files) == (0, 0)
    assert list(versions(b)) == [1]


def test_a_version_that_changes_while_it_is_renumbered_is_decided_anew(
    pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    real, left = Datastore, [1]
    import bayou.sync.transfer.apply as act
    from bayou.sync.transfer.pull import pull

    def meanwhile(context: Any, items: Any, *rest: Any) -> Any:
        if left and items:
            left.pop()
            with real(b.repo) as datastore:
                datastore.tree.delete(f"{ITEM}/3/raw")
                datastore.tree.write_many(list(version(3, "of b", deleted=True).items()))
        return pull(context, items, *rest)

    monkeypatch.setattr(act, "pull", meanwhile)

    report = sync(b)
    sync(a)

    assert report.pushed.renumbered == 1
    assert versions(a) == versions(b)
    assert f"{ITEM}/4/raw" not in b.files, "what was deleted meanwhile does not come back under its new number"
    assert 5 not in versions(a)


@pytest.mark.parametrize("mode", ["sync", "push", "pull"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sync_that_dies_at_any_request_neither_loses_nor_doubles_a_version(
    team: Team, wire: Wire, mode: str, when: Any
) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all(version(1, "of a"))
    b.write_all(version(1, "of b"))
    sync(a)
    store, tree = team.root / "store", b.repo.root
    for source in (store, tree):
        shutil.copytree(source, team.root / "kept" / source.name)
    for number in range(1, 40):
        wire.cut(Fault(nth=number, when=when, error=crash))
        try:
            sync(b, mode=mode)
            died = False
        except Crash:
            died = True
        wire.cut()
        sync(b)
        sync(a)
        assert versions(b) == versions(a) == {1: "of a", 2: "of b"}, f"killed {when} request {number}"
        if not died:
            assert number > 3
            return
        for target in (store, tree):
            shutil.rmtree(target)
            shutil.copytree(team.root / "kept" / target.name, target)
        shutil.rmtree(a.repo.state)
        shutil.rmtree(a.repo.tree_root)
    pytest.fail("it never came to an end")


KILLED = """
import importlib
from bayou.repo import open_repo
from bayou.data.sync_hooks import renumber
from bayou.repo import init_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

module, owner, name = sys.argv[2:5]
target = importlib.import_module(module)
after(getattr(target, owner) if owner else target, name, int(sys.argv[5]))
sync(Connection(open_repo(sys.argv[1])), SyncOptions(renumber=renumber))
"""

STEPS = [
    ("bayou.worktree.staged_directory", "StagedDirectory", "write", 1),
    ("bayou.worktree.staged_directory", "StagedDirectory", "sync", 1),
    ("bayou.worktree.staged_directory", "StagedDirectory", "install", 1),
    ("bayou.sync.conflicts.renumber", "Renumbering", "copy", 1),
    ("bayou.sync.transfer.pull", "", "record_intents", 1),
    ("bayou.worktree.staging", "StagingArea", "install", 1),
    ("bayou.worktree.staging", "StagingArea", "install", 2),
    ("bayou.sync.transfer.apply", "", "pull", 1),
    ("bayou.sync.conflicts.renumber", "Renumbering", "finish", 1),
]


@pytest.mark.parametrize(("module", "owner", "name", "count"), STEPS, ids=lambda value: str(value).rpartition(".")[2])
def test_a_sync_that_is_killed_between_its_steps_neither_loses_nor_doubles_a_version(
    pair: tuple[Clone, Clone], module: str, owner: str, name: str, count: int
) -> None:
    a, b = pair

    assert children.run_to_death(KILLED, b.repo.root, module, owner, name, count)
    sync(b)
    sync(a)

    assert versions(a) == versions(b) == BOTH


def test_two_repos_that_worked_alone_and_then_joined_one_store_keep_both_versions(team: Team) -> None:
    repos = [init_repo(team.root / name) for name in ("alone", "other")]
    for repo in repos:
        with Datastore(repo) as datastore:
            datastore.tree.write_many(list(version(1, f"of {repo.root.name}").items()))
        report = api.setup(
            repo,
            team.url,
            namespace=None,
            options={},
            lazy=False,
            skip_migration=False,
            timeout=None,
            renumber=renumber,
        )
        assert report.conflicts == []

    fresh = team.clone("fresh")
    sync(fresh)

    assert versions(fresh) == {1: "of alone", 2: "of other"}
    assert versions(Clone(repos[1])) == versions(fresh)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (b'id: "x"\nversion: 3\nname: "version: 9"\n', b'id: "x"\nversion: 12\nname: "version: 9"\n'),
        (b"version: 3\r\nname: x\r\n", b"version: 12\nname: x\r\n"),
        (b"owner:\n  version: 3\n", None),
        (b'version: "3"\n', None),
        (b"", None),
    ],
)
def test_the_rule_rewrites_the_one_line_that_says_the_number(metadata: bytes, expected: bytes | None) -> None:
    assert renumber(metadata, 12) == expected


# ---- nothing of a version that gives way is gone before all of the other has come ----

MORE = f"{ITEM}/3/more"


def test_a_version_that_changes_between_two_batches_of_the_download_loses_no_file(
    pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other version has no `more`, so nothing has to come before it could be removed; the rest comes later."""
    _, b = pair
    b.write(MORE, b"more of b")
    monkeypatch.setattr(executor, "BATCH_S", 0.0)
    install, batches = pull.install_batch, []

    def write_before_the_second(*args: Any) -> set[str]:
        batches.append(args)
        if len(batches) == 2:
            b.write_all(version(3, "of b, again"))
        return install(*args)

    monkeypatch.setattr(pull, "install_batch", write_before_the_second)
    report = sync(b)

    assert len(batches) > 2
    assert (report.exit_code, report.conflicts, report.pushed.renumbered) == (0, [], 1)
    assert versions(b) == BOTH | {4: "of b, again"}
    assert b.files[f"{ITEM}/4/more"] == b"more of b"
    assert MORE not in b.files


@pytest.mark.parametrize("packed", [True, False])
def test_a_version_stays_whole_if_the_one_that_it_gives_way_to_is_collected_meanwhile(
    team: Team, pair: tuple[Clone, Clone], monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    if not packed:
        monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    a, b = pair
    a.write_all(version(3, "of a, again"))
    sync(a)
    b.write(MORE, b"more of b")
    begin = pull.pull
    pulls: list[Any] = []

    def collect_first(*args: Any) -> set[str]:
        if not pulls:
            a.delete(*version(3, ""))
            sync(a)
            api.collect(a.repo, dry_run=False, grace_s=-2.0)
        pulls.append(args)
        return begin(*args)

    monkeypatch.setattr(apply, "pull", collect_first)
    report = sync(b)

    kept = {1: "first", 2: "second", 3: "of b"}
    assert (report.exit_code, report.conflicts, report.missing, report.pushed.renumbered) == (0, [], [], 0)
    assert versions(b) == kept
    assert b.files[MORE] == b"more of b"
    fresh = team.clone("fresh")
    sync(fresh)
    assert fresh.files == b.files
    assert not list(b.repo.conflicts.rglob("*"))
