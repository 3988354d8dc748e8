"""Whatever the repositories do reaches a peer with one push; whatever they only read leaves no trace.

The public methods of all four are found by looking at the classes: one without a case here fails.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from bayou.core.errors import DataNotFound, RecordNotFound
from bayou.core.ids import ulid
from bayou.data.catalog.rows import SavedVersion
from bayou.data.items import DataRepository
from bayou.data.layout import ModelRef
from bayou.data.metadata import Options
from bayou.data.outputs import EvaluatedRepository, Output, OutputRepository
from bayou.data.records import Records
from bayou.data.runs import JobRecord, Run, RunRepository, StepRecord
from bayou.data.spool import receive
from bayou_testing.proxy import HttpProxy
from tests.data.models import MODEL, OTHER, visible
from tests.sync.conftest import Team

pytestmark = pytest.mark.s3

Check = Callable[[Records], None]
Case = Callable[[Records], Check]

OUTPUT = Output(
    "3b1d5c0e-1111-4222-8333-444455556666",
    "plan",
    "succeeded",
    "2024-01-02T03:04:05.000Z",
    duration_s=1.5,
    inputs={"size": 3, "deep": [{"a": None}]},
    data=(SavedVersion("x", 1, 3, None),),
    run="r",
    tags={"a": "b"},
)
RUN = Run(
    "01HZZZZZZZZZZZZZZZZZZZZZZZ",
    "wf-1",
    "nightly",
    "running",
    "2024-01-02T03:04:05.000Z",
    inputs={"day": "monday"},
    tags={"env": "prod"},
    jobs=(
        JobRecord(
            "build",
            "running",
            (StepRecord("compile", "succeeded", "main", "plan", "o", 1.5, None, (SavedVersion("x", 1, 3, None),)),),
        ),
    ),
    by="me@here",
)
EVALUATED = {"name": "main", "arguments": {"size": 3, "odd key": ["😀", None]}}


def _furnish(records: Records) -> None:
    """Have something of everything."""
    for number in range(1, 4):
        records.data.save(MODEL, "x", b"%d" % number)
    records.data.save(MODEL, "log", b"one\n", streaming=True)
    _save_files(records, MODEL, "files")
    records.outputs.save(MODEL, OUTPUT)
    records.runs.save(RUN)
    records.evaluated.save_definition(MODEL, OUTPUT.id, EVALUATED)
    records.evaluated.save_workflow("wf-1", RUN.run_id, EVALUATED)


def _save_files(records: Records, model: ModelRef, name: str) -> None:
    with TemporaryDirectory() as folder:
        Path(folder, "a").write_bytes(b"a")
        Path(folder, "b").write_bytes(b"bb")
        records.data.save_directory(model, name, Path(folder))


def _write_files(records: Records) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        records.data.write_directory(records.data.get(MODEL, "files"), Path(folder, "out"))
        return {file.name: file.read_bytes() for file in Path(folder, "out").iterdir()}


def _save_directory(records: Records) -> Check:
    _save_files(records, OTHER, "new")

    def check(peer: Records) -> None:
        manifest = peer.data.manifest(peer.data.get(OTHER, "new"))
        assert [(file.name, file.size) for file in manifest.files] == [("a", 1), ("b", 2)]

    return check


def _undelete(records: Records) -> Check:
    records.data.delete(MODEL, "x")
    saved = records.data.undelete(MODEL, "x")

    def check(peer: Records) -> None:
        item = peer.data.get(MODEL, "x")
        assert (item.metadata, peer.data.read(item)) == (saved, b"3")

    return check


def _save(records: Records) -> Check:
    saved = records.data.save(OTHER, "new", b"content", tags={"a": "b"}, lifetime="7d", keep="3")

    def check(peer: Records) -> None:
        item = peer.data.get(OTHER, "new")
        assert (item.metadata, peer.data.read(item)) == (saved, b"content")

    return check


def _use_input(records: Records) -> Check:
    with receive(records.repo, "put", MODEL, "x", b"4", Options()) as spooled:
        saved = records.data.use_input(spooled).metadata

    def check(peer: Records) -> None:
        assert peer.data.get(MODEL, "x").metadata == saved
        assert saved.version == 4

    return check


def _append(records: Records) -> Check:
    records.data.append(MODEL, "log", b"two\n")

    def check(peer: Records) -> None:
        assert peer.data.read(peer.data.get(MODEL, "log")) == b"one\ntwo\n"

    return check


def _allocate(records: Records) -> Check:
    with records.data.allocate(MODEL, "big") as room:
        room.path.write_bytes(b"in place")
        room.finalize()

    def check(peer: Records) -> None:
        assert peer.data.read(peer.data.get(MODEL, "big")) == b"in place"

    return check


def _stage(records: Records) -> Check:
    with records.data.stage() as stage:
        stage.save(MODEL, "s", b"1")
        stage.save(OTHER, "s", b"2")
        stage.publish()

    def check(peer: Records) -> None:
        assert {visible(peer)["main", "s", 1], visible(peer)["weekly", "s", 1]} == {b"1", b"2"}

    return check


def _delete(records: Records) -> Check:
    assert records.data.delete(MODEL, "x") == 3

    def check(peer: Records) -> None:
        with pytest.raises(DataNotFound):
            peer.data.get(MODEL, "x")
        assert peer.data.find(name="x") == []
        assert [(row.version, row.deleted) for row in peer.data.versions(MODEL, "x")] == [(3, True)]

    return check


def _delete_many(records: Records) -> Check:
    rows = records.data.find(name="x", all_versions=True)[:2]
    assert records.data.delete_many(rows) == 2

    def check(peer: Records) -> None:
        assert [row.version for row in peer.data.find(name="x", all_versions=True)] == [3]

    return check


def _rename(records: Records) -> Check:
    records.data.rename(MODEL, "x", "y")

    def check(peer: Records) -> None:
        item = peer.data.get(MODEL, "x")
        assert (item.metadata.name, item.metadata.version, item.forwarded) == ("y", 3, ("x",))
        assert {key[1:]: content for key, content in visible(peer).items() if key[1] not in ("log", "files")} == {
            ("y", 1): b"1",
            ("y", 2): b"2",
            ("y", 3): b"3",
        }

    return check


def _save_output(records: Records) -> Check:
    kept = records.outputs.save(OTHER, Output(ulid(), "check", "failed", "2024-01-02T03:04:05.000Z", error="no"))

    def check(peer: Records) -> None:
        assert peer.outputs.get(kept.id) == kept
        assert [row.id for row in peer.outputs.list(OTHER)] == [kept.id]

    return check


def _save_run(records: Records) -> Check:
    changed = replace(RUN, status="failed", failed_step="compile", finished_at="2024-01-02T03:05:00.000Z")
    records.runs.save(changed)

    def check(peer: Records) -> None:
        assert peer.runs.get(RUN.run_id) == changed
        rows, total = peer.runs.search(status="failed")
        assert ([row.failed_step for row in rows], total) == (["compile"], 1)
        assert peer.runs.search(status="running") == ([], 0)

    return check


def _delete_run(records: Records) -> Check:
    records.runs.delete(RUN.run_id)

    def check(peer: Records) -> None:
        with pytest.raises(RecordNotFound):
            peer.runs.get(RUN.run_id)
        assert peer.runs.search() == ([], 0)

    return check


def _save_definition(records: Records) -> Check:
    records.evaluated.save_definition(OTHER, "o", {"a": 1})

    def check(peer: Records) -> None:
        assert peer.evaluated.get_definition(OTHER, "o") == {"a": 1}

    return check


def _save_workflow(records: Records) -> Check:
    records.evaluated.save_workflow("wf-1", None, {"a": 1})

    def check(peer: Records) -> None:
        assert peer.evaluated.get_workflow("wf-1") == {"a": 1}
        assert peer.evaluated.get_workflow("wf-1", RUN.run_id) == EVALUATED

    return check


def _record_deleted(records: Records) -> Check:
    records.evaluated.record_deleted(MODEL)

    def check(peer: Records) -> None:
        assert peer.evaluated.was_deleted(MODEL.type, MODEL.id)

    return check


WRITES: dict[tuple[type, str], Case] = {
    (DataRepository, "save"): _save,
    (DataRepository, "use_input"): _use_input,
    (DataRepository, "save_directory"): _save_directory,
    (DataRepository, "undelete"): _undelete,
    (DataRepository, "append"): _append,
    (DataRepository, "allocate"): _allocate,
    (DataRepository, "stage"): _stage,
    (DataRepository, "delete"): _delete,
    (DataRepository, "delete_many"): _delete_many,
    (DataRepository, "rename"): _rename,
    (OutputRepository, "save"): _save_output,
    (RunRepository, "save"): _save_run,
    (RunRepository, "delete"): _delete_run,
    (EvaluatedRepository, "save_definition"): _save_definition,
    (EvaluatedRepository, "save_workflow"): _save_workflow,
    (EvaluatedRepository, "record_deleted"): _record_deleted,
}

READS: dict[tuple[type, str], Callable[[Records], object]] = {
    (DataRepository, "get"): lambda records: records.data.get(MODEL, "x"),
    (DataRepository, "read"): lambda records: records.data.read(records.data.get(MODEL, "x")),
    (DataRepository, "fetch"): lambda records: records.data.fetch(["data/t/m/x/1/raw"]),
    (DataRepository, "open"): lambda records: records.data.open(records.data.get(MODEL, "x")).close(),
    (DataRepository, "path"): lambda records: records.data.path(records.data.get(MODEL, "x")),
    (DataRepository, "manifest"): lambda records: records.data.manifest(records.data.get(MODEL, "files")),
    (DataRepository, "write_directory"): _write_files,
    (DataRepository, "find"): lambda records: records.data.find(model=MODEL),
    (DataRepository, "versions"): lambda records: records.data.versions(MODEL, "x"),
    (OutputRepository, "get"): lambda records: records.outputs.get(OUTPUT.id),
    (OutputRepository, "find"): lambda records: records.outputs.find(MODEL, OUTPUT.id[:4]),
    (OutputRepository, "list"): lambda records: records.outputs.list(MODEL),
    (RunRepository, "find"): lambda records: records.runs.find("latest"),
    (RunRepository, "get"): lambda records: records.runs.get(RUN.run_id),
    (RunRepository, "search"): lambda records: records.runs.search("monday"),
    (EvaluatedRepository, "get_definition"): lambda records: records.evaluated.get_definition(MODEL, OUTPUT.id),
    (EvaluatedRepository, "get_workflow"): lambda records: records.evaluated.get_workflow("wf-1", RUN.run_id),
    (EvaluatedRepository, "was_deleted"): lambda records: records.evaluated.was_deleted(MODEL.type, MODEL.id),
}


def test_every_public_method_of_the_four_repositories_has_a_case() -> None:
    classes = (DataRepository, OutputRepository, RunRepository, EvaluatedRepository)
    public = {
        (one, name)
        for one in classes
        for name, _ in inspect.getmembers(one, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public == WRITES.keys() | READS.keys()
    assert not WRITES.keys() & READS.keys()


@pytest.mark.parametrize("case", WRITES.values(), ids=[f"{one.__name__}.{name}" for one, name in WRITES])
def test_f030_what_a_writing_method_did_reaches_a_fresh_peer_after_one_push(s3_team: Team, case: Case) -> None:
    a = s3_team.clone("a")
    with Records(a.repo) as records:
        _furnish(records)
        records.sync.push_changed()
        check = case(records)
        check(records)  # here, at once
    report = a.push()
    assert report.commit is not None
    assert not report.failed
    assert a.status().journal_paths == 0
    fresh = s3_team.clone("fresh")
    assert fresh.pull().exit_code == 0
    assert fresh.files == a.files
    with Records(fresh.repo) as peer:
        check(peer)


def test_reading_methods_leave_the_journal_and_the_store_untouched(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    with Records(a.repo) as records:
        _furnish(records)
    a.push()
    b = s3_team.clone("b", hydrate="lazy")
    b.pull()
    for clone in (a, b):
        before = _journal(clone.repo.state)
        proxy.log.clear()
        with Records(clone.repo) as records:
            for (owner, name), read in READS.items():
                answer = read(records)
                assert answer is not None or name == "open", (owner, name)
        assert _journal(clone.repo.state) == before
        assert not proxy.log.writes()


def _journal(state: Path) -> object:
    """All rows, and the number of rows that there ever were."""
    with sqlite3.connect(state / "sync.db") as db:
        return db.execute("SELECT * FROM journal").fetchall(), db.execute("SELECT * FROM sqlite_sequence").fetchall()
