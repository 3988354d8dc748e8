"""What people read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.cli.output import Line, Table
from bayou.cli.render import datastore as render_datastore
from bayou.cli.render import maintenance as render_maintenance
from bayou.index.log import LogRow
from bayou.objectstore.transport import Requests
from bayou.sync.report import (
    CollectReport,
    CommitId,
    CompactReport,
    Conflict,
    Failure,
    IndexStatus,
    KeptCopy,
    PackStatus,
    PlannedAction,
    Refusal,
    SetupReport,
    Status,
    SyncReport,
    TransferCounts,
    VerifyReport,
)


def lines(parts, label: str | None = None) -> list[str]:
    return [part.text for part in parts if isinstance(part, Line) and part.label == label]


def synced(label: str | None = None, verbose: bool = False, **report) -> list[str]:
    return lines(render_datastore.sync_text(SyncReport(**report), verbose=verbose), label)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({}, "already in sync"),
        ({"mode": "push"}, "nothing to push"),
        ({"mode": "pull"}, "nothing to pull"),
        (
            {"pushed": TransferCounts(3, 12_300), "commit": CommitId(17, "c"), "pulled": TransferCounts(1, 10)},
            "pushed 3 files (12 KB) as commit 17; pulled 1 file (10 B); in sync",
        ),
        (
            {"mode": "push", "pushed": TransferCounts(1, 1_234, 2, 1), "commit": CommitId(2, "c")},
            "pushed 1 file (1.2 KB), renumbered 1 version, deleted 2 files in the store as commit 2",
        ),
        ({"pulled": TransferCounts(0, 0, 1)}, "deleted 1 file here; in sync"),
        ({"commit": CommitId(2, "c")}, "recorded as commit 2; in sync"),
        ({"missing": ["data/m"]}, "nothing was moved"),
        ({"pulled": TransferCounts(2, 10), "missing": ["data/m"]}, "pulled 2 files (10 B)"),
    ],
)
def test_a_sync_is_one_sentence(report, sentence):
    assert synced(**report) == [sentence]


def test_in_sync_is_said_only_when_it_is_proved():
    """V17: neither after half a sync, nor when something failed or was missing."""
    moved: dict[str, Any] = {"pushed": TransferCounts(1, 1), "commit": CommitId(1, "c")}

    assert "in sync" not in synced(mode="push", **moved)[0]
    assert "in sync" not in synced(failed=[Failure("data/f", "c", "m")], **moved)[0]
    assert "in sync" not in synced(conflicts=[Conflict("data/c", "remote", "k")], **moved)[0]


@pytest.mark.parametrize(
    ("conflict", "sentence"),
    [
        (Conflict("data/c", "remote", "/kept/c"), "data/c: the store's has the path; yours is kept as /kept/c"),
        (Conflict("data/c", "local", "/kept/c"), "data/c: yours has the path; the store's is kept as /kept/c"),
        (Conflict("data/c", "local", None), "data/c: yours has the path"),
    ],
)
def test_a_conflict_says_who_won_and_where_the_other_is(conflict, sentence):
    assert synced("conflict", conflicts=[conflict]) == [sentence]
    assert bool(synced("hint", conflicts=[conflict])) is (conflict.copy is not None)


def test_untracked_files_are_counted_and_can_be_adopted():
    assert synced("warning", untracked=["data/u"]) == ["1 file is not tracked, and stays here: data/u"]
    assert synced("warning", untracked=["data/u", "data/v"]) == ["2 files are not tracked, and stay here: data/u, …"]
    assert "--adopt" in synced("hint", untracked=["data/u"])[0]
    assert "not tracked: data/v" in synced(untracked=["data/u", "data/v"], verbose=True)


def test_what_failed_is_named_with_its_cause():
    assert synced("error", failed=[Failure("data/f", "access_denied", "403")]) == ["data/f: 403 (access_denied)"]
    assert synced("error", missing=["data/m"]) == ["data/m: its content is missing in the store"]
    assert synced("warning", refused=[Refusal("x", "a backslash")], warnings=["w"]) == ["refused x: a backslash", "w"]


def test_the_hint_for_a_damaged_object_names_what_can_help():
    damaged, denied = Failure("data/f", "bad_content", "other bytes"), Failure("data/g", "access_denied", "403")
    repair = "run `bayou datastore verify --deep --repair` in a tree that has the content: it brings it back"

    assert synced("hint", failed=[damaged]) == [repair]
    assert synced("hint", failed=[denied]) == ["the rest is done; `bayou datastore sync` tries these again"]
    assert synced("hint", failed=[damaged, denied]) == [
        "the rest is done; `bayou datastore sync` tries the others again",
        repair,
    ]


def test_a_long_list_is_cut_unless_somebody_wants_it_all():
    failed = [Failure(f"data/{number}", "c", "m") for number in range(25)]

    assert len(synced("error", failed=failed)) == 10
    assert synced("warning", failed=failed) == ["and 15 more; -v lists all"]
    assert len(synced("error", failed=failed, verbose=True)) == 25


def test_requests_are_told_on_demand():
    (last,) = synced(verbose=True, requests=Requests(get=1), seconds=0.25)[-1:]

    assert last == "1 request (1 get, 0 put, 0 head, 0 list, 0 delete) in 0.2 s, the fast way"


def test_a_dry_run_lists_what_would_be_done():
    actions = [PlannedAction("data/a", "push"), PlannedAction("data/b", "pull"), PlannedAction("data/c", "push")]

    table, summary = render_datastore.sync_text(SyncReport(dry_run=True, actions=actions), verbose=False)

    assert isinstance(table, Table)
    assert isinstance(summary, Line)
    assert table.rows == [("push", "data/a"), ("pull", "data/b"), ("push", "data/c")]
    assert summary.text == "dry run, nothing was changed: push 2, pull 1"
    assert synced(dry_run=True) == ["already in sync (dry run)"]


def test_a_long_dry_run_says_that_it_shows_only_the_beginning():
    actions = [PlannedAction(f"data/{number}", "push") for number in range(12)]

    table, summary, more = render_datastore.sync_text(SyncReport(dry_run=True, actions=actions), verbose=False)

    assert isinstance(table, Table)
    assert isinstance(summary, Line)
    assert isinstance(more, Line)
    assert len(table.rows) == 10
    assert (summary.text, more.text) == ("dry run, nothing was changed: push 12", "and 2 more; -v lists all")


def test_a_setup_tells_what_moved():
    report = SetupReport("s3://b", "n", 3, 4, 30, 4000, True, 0, [], [], [])

    assert lines(render_datastore.setup_text(report, verbose=False)) == [
        "this repo's data is in s3://b (namespace n) now",
        "indexed what was there; pushed 3 files (30 B); pulled 4 files (4.0 KB)",
    ]


def test_a_status_tells_how_things_stand():
    report = Status("s3://b", None, True, 12, "2 changed paths wait", IndexStatus(17, "c", 1204, 34_200_000, "d"),
                    False, 15, 2, False, "lazy", "/t")  # fmt: skip

    assert lines(render_datastore.status_text(report)) == [
        "s3://b: 2 changed paths wait (12 ms)",
        "store: commit 17, 1,204 files (34 MB)",
        "tree:  /t, at commit 15, 2 changes to push, raw content only when it is read",
    ]
    assert lines(render_datastore.status_text(report), "hint") == [
        "reconcile tree and store with `bayou datastore sync`"
    ]


def test_a_status_of_a_store_that_does_not_answer_is_an_error():
    report = Status("s3://b", None, False, None, "refused", None, False, None, 0, True, "full", "/t")

    assert lines(render_datastore.status_text(report), "error") == ["refused"]
    assert lines(render_datastore.status_text(report)) == [
        "s3://b",
        "tree:  /t, never synced, to be looked through for changes",
    ]


def test_a_verify_gives_its_verdict():
    good = VerifyReport(1204, [], [], [], 1, 2, 3)
    bad = VerifyReport(1, ["data/m"], ["data/c"], ["data/u"], 0, 0, 0, unrecovered=["data/r"])

    assert lines(render_maintenance.verify_text(good, verbose=False)) == [
        "checked 1,204 files, repaired 3: all is well",
        "1 object of earlier or unfinished pushes, 2 objects in the trash: `bayou datastore gc` removes them",
    ]
    assert lines(render_maintenance.verify_text(bad, verbose=False)) == ["checked 1 file: there is damage"]
    assert lines(render_maintenance.verify_text(bad, verbose=False), "error") == [
        "data/m: missing in the store",
        "data/c: changed in the store",
        "data/r: could not be recovered",
    ]
    assert lines(render_maintenance.verify_text(bad, verbose=False), "warning") == [
        "data/u: in the store, but not in its index"
    ]


@pytest.mark.parametrize(("deep", "named"), [(False, "verify --repair"), (True, "verify --deep --repair")])
def test_a_verify_names_the_repair_that_finds_the_same_damage(deep, named):
    report = VerifyReport(1, [], ["data/c"], [], 0, 0, 0)

    first, *_ = lines(render_maintenance.verify_text(report, verbose=False, deep=deep), "hint")

    assert first == f"where a tree has the content, `bayou datastore {named}` brings it back"


def test_a_verify_of_more_than_it_can_name_tells_the_number():
    report = VerifyReport(9000, [f"data/{at:04}" for at in range(1000)], [], [], 0, 0, 0, totals={"missing": 4321})

    *_, last = lines(render_maintenance.verify_text(report, verbose=False), "warning")
    assert last == "and 4,311 more; -v lists the first 1,000"
    *_, last = lines(render_maintenance.verify_text(report, verbose=True), "warning")
    assert last == "and 3,321 more"
    assert render_maintenance.verify_json(report)["totals"] == {"missing": 4321}
    assert "totals" not in render_maintenance.verify_json(VerifyReport(1, [], [], [], 0, 0, 0))


def test_a_collection_tells_what_it_freed():
    assert lines(render_maintenance.collect_text(CollectReport(0, 0, 0, 0, 0))) == ["nothing to collect"]
    assert lines(render_maintenance.collect_text(CollectReport(1, 0, 2, 1200, 5_000_000_000))) == [
        "deleted 1 object, 2 objects of the trash and 1,200 index nodes; that freed 5.0 GB"
    ]
    assert lines(render_maintenance.collect_text(CollectReport(0, 3, 0, 0, 5, dry_run=True))) == [
        "would delete 3 leftovers; that frees 5 B"
    ]
    assert lines(render_maintenance.collect_text(CollectReport(2, 1, 0, 0, 5, packs_deleted=2))) == [
        "deleted 2 objects and 1 leftover, among them 2 packs; that freed 5 B"
    ]


def test_a_compaction_tells_what_it_moved_and_what_gc_can_free():
    report = CompactReport(12, 2, 2001, 1, 50_000, 60_000)
    assert lines(render_maintenance.compact_text(report, verbose=False)) == [
        "moved 2,001 files (50 KB), 1 object of their own among them, into new packs: 12 packs before, 2 after"
    ]
    assert lines(render_maintenance.compact_text(report, verbose=False), "hint") == [
        "`bayou datastore gc` can free 60 KB, after its grace"
    ]
    dry = CompactReport(1, 1, 1, 0, 5, 7, dry_run=True)
    assert lines(render_maintenance.compact_text(dry, verbose=False)) == [
        "would move 1 file (5 B) into new packs: 1 pack before, 1 after"
    ]
    assert lines(render_maintenance.compact_text(CompactReport(3, 3), verbose=False)) == [
        "nothing to compact (3 packs)"
    ]


def test_a_compaction_names_what_it_could_not_move():
    report = CompactReport(3, 3, failed=[Failure("data/f", "bad_content", "other bytes")], failures=2, skipped=1)
    assert lines(render_maintenance.compact_text(report, verbose=False), "error") == [
        "data/f: other bytes",
        "and 1 more could not be moved",
    ]
    assert lines(render_maintenance.compact_text(report, verbose=False)) == [
        "1 file changed meanwhile, and stayed where it was"
    ]


def test_a_status_tells_of_packs_and_names_the_command_that_joins_them():
    report = Status(
        "s3://b",
        None,
        True,
        12,
        "in sync",
        None,
        True,
        15,
        0,
        False,
        "full",
        "/t",
        PackStatus(240, 230, 2_000_000, 900),
    )
    assert "packs: 240 (2.0 MB), 230 of them small, 900 B in them of files that were deleted or replaced" in lines(
        render_datastore.status_text(report)
    )
    assert lines(render_datastore.status_text(report), "hint") == [
        "join small packs and remove what was deleted with `bayou datastore compact`"
    ]
    few = replace(report, packs=PackStatus(3, 2, 2_000_000, 0))
    assert "packs: 3 (2.0 MB), 2 of them small" in lines(render_datastore.status_text(few))
    assert lines(render_datastore.status_text(few), "hint") == []


def test_a_hydration_tells_what_came():
    assert lines(render_datastore.hydrate_text(TransferCounts(1, 5))) == ["fetched 1 file (5 B)"]
    assert lines(render_datastore.hydrate_text(TransferCounts())) == ["nothing to fetch: all is here"]


def test_a_log_is_a_table():
    row = LogRow(7, "c7", "2030-01-02T03:04:05.678Z", "ada@host", None, 1000, 2, 3, 400)

    (table,) = render_datastore.log_text([row])

    assert isinstance(table, Table)
    assert table.headings == ("commit", "when", "by", "kind", "added", "changed", "deleted", "size")
    seq, when, *rest = table.rows[0]
    assert (seq, rest) == ("7", ["ada@host", "push", "1,000", "2", "3", "400 B"])
    assert re.fullmatch(r"20(29|30)-\d\d-\d\d \d\d:\d\d:\d\d", when)
    assert lines(render_datastore.log_text([])) == ["no commits yet"]


def test_kept_copies_are_a_table():
    (table, hint) = render_datastore.conflicts_text([KeptCopy("data/x", "/kept/x", 1_893_553_445_678, 5)])

    assert isinstance(table, Table)
    assert isinstance(hint, Line)
    assert (table.rows[0][0], table.rows[0][2:]) == ("data/x", ("5 B", "/kept/x"))
    assert "`bayou datastore conflicts show PATH`" in hint.text
    assert lines(render_datastore.conflicts_text([])) == ["no conflicts"]


@pytest.fixture
def kept(api, repo):
    """A text on both sides, and what differs."""

    def write(here: bytes, copy: bytes) -> None:
        file, other = repo.tree_root / "data" / "x", repo.conflicts / "t" / "data" / "x"
        for path, content in ((file, here), (other, copy)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        api.answer("conflicts", [KeptCopy("data/x", str(other), 0, len(copy))])

    return write


def test_a_kept_text_is_compared_line_by_line(kept, command):
    kept(b"one\ntwo\n", b"one\nthree\n")

    ran = command("datastore", "conflicts", "show", "data/x")

    assert ran.code == 0
    assert "-two\n+three\n" in ran.out
    assert "conflicts take PATH" in ran.err


@pytest.mark.parametrize("copy", [b"\xff\xfe", b"a\0b", b"x" * (2 << 20)])
def test_what_is_no_short_text_is_only_named(kept, command, copy):
    kept(b"one\n", copy)

    ran = command("datastore", "conflicts", "show", "data/x")

    assert ran.code == 0
    assert "nothing to compare" in ran.out


def test_a_path_that_is_gone_here_is_only_named(kept, command, repo):
    kept(b"one\n", b"two\n")
    (repo.tree_root / "data" / "x").unlink()

    assert "nothing to compare" in command("datastore", "conflicts", "show", "data/x").out


def test_the_text_of_a_copy_cannot_command_the_terminal(kept, command):
    kept(b"one\n", b"\x1b[2J\n")

    assert "+\\x1b[2J" in command("datastore", "conflicts", "show", "data/x").out


def test_a_sync_never_says_in_sync_without_a_store_offline_or_with_untracked_files():
    lines = {
        "no store": synced(asked=False)[0],
        "offline": synced(asked=False, warnings=["offline: nothing was pulled or pushed"])[0],
        "untracked": synced(untracked=[f"files/{number}" for number in range(20_001)])[0],
        "dry run": synced(untracked=["files/x"], dry_run=True)[0],
        "moved": synced(untracked=["files/x"], pulled=TransferCounts(2, 10))[0],
    }
    assert lines == {
        "no store": "there is no store to sync with: the data is in a directory of this machine",
        "offline": "the store was not asked",
        "untracked": "nothing to push or pull but 20,001 untracked files",
        "dry run": "nothing to push or pull but 1 untracked file (dry run)",
        "moved": "pulled 2 files (10 B); in sync but for 1 untracked file",
    }
    assert any("--adopt" in line for line in synced("hint", untracked=["files/x"]))
    assert any("datastore setup" in line for line in synced("hint", asked=False))
    assert not synced("hint", asked=False, warnings=["offline: nothing was pulled or pushed"])
