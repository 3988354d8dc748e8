"""`bayou datastore`: what reaches the engine, and what scripts get back, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.data.sync_hooks import renumber
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
    SyncOptions,
    SyncReport,
    TransferCounts,
    VerifyReport,
)

STATUS = Status(
    "s3://b/p", "n", True, 12, "in sync", IndexStatus(17, "c17", 3, 99, "d1"), True, 17, 0, False, "full", "/t"
)
SETUP = SetupReport("s3://b/p", "n", 3, 4, 30, 40, True, 3, [Refusal("data/..", "no")], [], ["careful"])
VERIFIED = VerifyReport(10, [], [], ["files/x"], 2, 1, 0)
ROW = LogRow(7, "c7", "2030-01-02T03:04:05.678Z", "ada@host", None, 1, 2, 3, 400)
COPY = KeptCopy("data/x", "/r/.bayou/conflicts/t/data/x", 1_893_553_445_678, 5)


def full_report() -> SyncReport:
    return SyncReport(
        mode="sync",
        engine="point",
        pulled=TransferCounts(1, 10, 2),
        pushed=TransferCounts(3, 30, 4, 5),
        conflicts=[Conflict("data/c", "remote", "/kept/c")],
        untracked=["data/u"],
        missing=["data/m"],
        refused=[Refusal("data/\x01", "a control character")],
        failed=[Failure("data/f", "access_denied", "403")],
        warnings=["look"],
        commit=CommitId(18, "c18"),
        requests=Requests(1, 2, 3, 4, 5, 6, 7),
        seconds=1.23456,
    )


def test_a_sync_is_told_exactly_as_documented(api, repo, command):
    api.answer("sync", full_report())

    ran = command("datastore", "sync", "--json")

    assert ran.document == {
        "mode": "sync",
        "engine": "point",
        "dry_run": False,
        "pulled": {"files": 1, "bytes": 10, "deleted": 2},
        "pushed": {"files": 3, "bytes": 30, "deleted": 4, "renumbered": 5},
        "conflicts": [{"path": "data/c", "kept": "remote", "copy": "/kept/c"}],
        "untracked": ["data/u"],
        "missing": ["data/m"],
        "refused": ["data/\x01"],
        "failed": [{"path": "data/f", "code": "access_denied", "message": "403"}],
        "warnings": ["look"],
        "commit": {"seq": 18, "commit": "c18"},
        "requests": {"get": 1, "put": 2, "head": 3, "list": 4, "delete": 5},
        "seconds": 1.235,
    }
    assert ran.err == ""
    assert ran.out.count("\n") == 1


def test_a_sync_without_a_commit_says_null(api, repo, command):
    api.answer("sync", SyncReport())

    assert command("datastore", "sync", "--json").document["commit"] is None


def test_only_a_dry_run_lists_actions(api, repo, command):
    api.answer("sync", SyncReport(dry_run=True, actions=[PlannedAction("data/x", "push")]))
    assert command("datastore", "sync", "--dry-run", "--json").document["actions"] == [
        {"path": "data/x", "action": "push"}
    ]

    api.answer("sync", SyncReport())
    assert "actions" not in command("datastore", "sync", "--json").document


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (SyncReport(), 0),
        (SyncReport(untracked=["data/u"], refused=[Refusal("x", "y")], warnings=["w"]), 0),
        (SyncReport(failed=[Failure("data/f", "c", "m")], conflicts=[Conflict("data/c", "remote", None)]), 1),
        (SyncReport(mode="pull", missing=["data/m"]), 1),
        (SyncReport(conflicts=[Conflict("data/c", "remote", "k")]), 3),
    ],
)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_the_exit_code_of_a_sync_follows_from_what_happened(api, repo, command, report, code, json):
    api.answer("sync", report)

    assert command("datastore", "sync", *json).code == code


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], SyncOptions()),
        (["--push"], SyncOptions(mode="push")),
        (["--pull", "--dry-run"], SyncOptions(mode="pull", dry_run=True)),
        (["--on-conflict", "ours"], SyncOptions(on_conflict="ours")),
        (["--adopt", "--allow-mass-delete"], SyncOptions(adopt=True, allow_mass_delete=True)),
        (["--engine", "spark"], SyncOptions(engine="spark")),
    ],
)
def test_the_flags_of_a_sync_reach_the_engine(api, repo, command, args, options):
    api.answer("sync", SyncReport())

    command("datastore", "sync", *args)

    ((name, (at, asked), rest),) = api.calls
    assert (name, at, asked, rest["timeout"]) == ("sync", repo, options, None)


@pytest.mark.parametrize(("typed", "seconds"), [("90", 90.0), ("1.5", 1.5), ("5m", 300.0), ("2h", 7200.0)])
def test_a_timeout_is_seconds_or_a_duration(api, repo, command, typed, seconds):
    api.answer("sync", SyncReport())

    command("datastore", "sync", "--timeout", typed)

    assert api.calls[0][2]["timeout"] == seconds


@pytest.mark.parametrize(
    "args",
    [
        ["--repo", "{repo}", "--json", "--offline", "datastore", "sync"],
        ["datastore", "--repo", "{repo}", "--json", "--offline", "sync"],
        ["datastore", "sync", "--repo", "{repo}", "--json", "--offline"],
        ["--json", "datastore", "--offline", "sync", "--repo", "{repo}"],
    ],
)
def test_common_options_stand_before_or_after_the_command(api, repo, command, monkeypatch, args):
    monkeypatch.chdir("/")
    api.answer("sync", SyncReport())

    ran = command(*(arg.format(repo=repo.root) for arg in args))

    assert ran.document["mode"] == "sync"
    used = api.calls[0][1][0]
    assert (used.root, used.offline) == (repo.root, True)


def test_the_environment_names_the_repo_and_a_flag_is_stronger(api, repo, command, monkeypatch, tmp_path):
    monkeypatch.chdir("/")
    api.answer("sync", SyncReport())
    monkeypatch.setenv("BAYOU_REPO", str(repo.root))
    assert command("datastore", "sync").code == 0

    ran = command("--repo", str(tmp_path), "datastore", "sync", "--json")

    assert (ran.code, ran.error["code"]) == (2, "not_a_repo")


def test_a_command_that_reads_this_machine_alone_has_no_offline_flag(api, repo, command):
    assert command("datastore", "log", "--offline").code == 2
    assert api.calls == []


def test_the_environment_can_ask_to_stay_offline(api, repo, command, monkeypatch):
    monkeypatch.setenv("BAYOU_OFFLINE", "1")
    api.answer("sync", SyncReport())

    command("datastore", "sync")

    assert api.calls[0][1][0].offline


def test_a_setup_is_told_exactly_as_documented(api, repo, command):
    api.answer("setup", SETUP)

    ran = command("datastore", "setup", "s3://b/p", "--json")

    assert ran.document == {
        "url": "s3://b/p",
        "namespace": "n",
        "pushed": 3,
        "pulled": 4,
        "bytes_pushed": 30,
        "bytes_pulled": 40,
        "discovered": True,
        "migrated": 3,
        "refused": ["data/.."],
        "conflicts": [],
        "warnings": ["careful"],
    }
    assert ran.code == 0


def test_the_flags_of_a_setup_reach_the_engine(api, repo, command):
    api.answer("setup", SETUP)

    command(
        *(
            "datastore",
            "setup",
            "s3://b/p",
            "--namespace",
            "n",
            "--option",
            "region=eu",
            "--option",
            "endpoint=http://x=y",
        ),
        *("--lazy", "--skip-migration", "--engine", "point", "--timeout", "10"),
    )

    assert api.calls[0][2].pop("progress") is not None
    assert api.calls == [
        (
            "setup",
            (repo, "s3://b/p"),
            {
                "namespace": "n",
                "options": {"region": "eu", "endpoint": "http://x=y"},
                "lazy": True,
                "skip_migration": True,
                "timeout": 10.0,
                "renumber": renumber,
                "engine": "point",
            },
        )
    ]


@pytest.mark.parametrize(("typed", "meant"), [("shared", "{cwd}/shared"), ("/mnt/x", "/mnt/x"), ("~/x", "{home}/x")])
def test_a_directory_is_taken_from_where_the_caller_stands(api, repo, command, monkeypatch, tmp_path, typed, meant):
    monkeypatch.chdir(tmp_path)
    api.answer("setup", SETUP)

    command("datastore", "setup", typed, "--repo", str(repo.root))

    assert api.calls[0][1][1] == meant.format(cwd=tmp_path, home=Path.home())


@pytest.mark.parametrize(
    ("unfinished", "conflicts", "code"),
    [("not finished after 5 s", [], 124), (None, [Conflict("data/c", "remote", "k")], 3), (None, [], 0)],
)
def test_a_setup_that_did_not_end_in_time_says_how_to_go_on_f056(api, repo, command, unfinished, conflicts, code):
    report = SetupReport("s3://b", None, 0, 0, 0, 0, False, 0, [], conflicts, [], unfinished)
    api.answer("setup", report)

    ran = command("datastore", "setup", "s3://b", "--json")
    people = command("datastore", "setup", "s3://b")

    assert (ran.code, people.code) == (code, code)
    assert ran.document["warnings"] == ([unfinished] if unfinished else [])
    assert ("`bayou datastore sync`" in people.err) is (unfinished is not None)


FAILURE = Failure("data/f", "content_changed", "it has other bytes")


@pytest.mark.parametrize(
    "found",
    [
        {"missing": ["data/m"]},
        {"failed": [FAILURE]},
        {"missing": ["data/m"], "conflicts": [Conflict("c", "local", "k")]},
    ],
    ids=["missing", "failed", "both"],
)
def test_v17_a_setup_of_a_store_that_has_lost_content_exits_with_1(api, repo, command, found):
    api.answer("setup", replace(SETUP, **found))

    ran = command("datastore", "setup", "s3://b", "--json")

    assert ran.code == command("datastore", "setup", "s3://b").code == 1
    assert ran.document.get("missing", []) == found.get("missing", [])
    assert [row["path"] for row in ran.document.get("failed", [])] == [row.path for row in found.get("failed", [])]


def test_a_status_is_told_exactly_as_documented(api, repo, command):
    api.answer("status", STATUS)

    ran = command("datastore", "status", "--json")

    assert ran.document == {
        "url": "s3://b/p",
        "namespace": "n",
        "healthy": True,
        "latency_ms": 12,
        "message": "in sync",
        "index": {"seq": 17, "commit": "c17", "entries": 3, "bytes": 99, "root": "d1"},
        "base": {"in_sync": True, "seq": 17},
        "journal": {"paths": 0, "bulk": False},
        "hydrate": "full",
        "tree": "/t",
        "packs": None,
        "freshness": {"head_seen_at": None, "age_s": None},
        "waiting": 0,
        "untracked": 0,
    }
    assert ran.code == 0


def test_a_status_tells_how_old_the_view_is_what_waits_and_what_is_untracked(api, repo, command):
    found = replace(STATUS, healthy=False, index=None, message="cannot connect", journal_paths=2)
    api.answer("status", replace(found, seen_ms=1_000, age_s=7300.0, waiting=3, untracked=20_001))

    ran, shown = command("datastore", "status", "--json"), command("datastore", "status").out

    assert ran.document["freshness"] == {"head_seen_at": "1970-01-01T00:00:01.000Z", "age_s": 7300.0}
    assert (ran.document["waiting"], ran.document["untracked"]) == (3, 20_001)
    assert "the store was last seen 2 h ago" in shown
    assert "1 input that no version was made of yet" in shown
    assert "20,001 files; `bayou datastore sync --adopt` pushes them" in shown


def test_a_status_of_a_store_without_packs_counts_none_and_does_not_talk_of_them(api, repo, command):
    api.answer("status", replace(STATUS, packs=PackStatus(0, 0, 0, 0)))

    ran, shown = command("datastore", "status", "--json"), command("datastore", "status")

    assert ran.document["packs"] == {"count": 0, "small": 0, "bytes": 0, "dead_bytes": 0}
    assert "pack" not in shown.out + shown.err


def test_a_status_tells_of_packs_if_they_were_counted(api, repo, command):
    api.answer("status", replace(STATUS, packs=PackStatus(12, 3, 90_000_000, 1200)))

    ran = command("datastore", "status", "--packs", "--json")

    assert ran.document["packs"] == {"count": 12, "small": 3, "bytes": 90_000_000, "dead_bytes": 1200}
    assert api.calls == [("status", (repo,), {"packs": True, "timeout": None})]


def test_a_status_of_a_store_that_cannot_be_reached_has_no_index_and_exits_with_1(api, repo, command):
    api.answer("status", Status("s3://b", None, False, None, "refused", None, False, None, 2, True, "lazy", "/t"))

    ran = command("datastore", "status", "--json")

    assert ran.code == 1
    assert ran.document["index"] is None
    assert ran.document["base"] == {"in_sync": False, "seq": None}
    assert ran.document["journal"] == {"paths": 2, "bulk": True}
    assert ran.document["latency_ms"] is None


def test_a_verify_is_told_exactly_as_documented(api, repo, command):
    api.answer("verify", VERIFIED)

    ran = command("datastore", "verify", "--json")

    assert ran.document == {
        "checked": 10,
        "missing": [],
        "changed": [],
        "unindexed": ["files/x"],
        "leftovers": 2,
        "trash": 1,
        "repaired": 0,
        "ok": True,
    }
    assert ran.code == 0


@pytest.mark.parametrize("damage", ["missing", "changed", "unrecovered"])
def test_damage_exits_with_4(api, repo, command, damage):
    found: dict[str, Any] = {"missing": [], "changed": [], "unindexed": [], damage: ["data/x"]}
    api.answer("verify", VerifyReport(checked=1, leftovers=0, trash=0, repaired=0, **found))

    ran = command("datastore", "verify", "--json")

    assert ran.code == 4
    assert ran.document["ok"] is False
    assert ran.document[damage] == ["data/x"]
    assert "data/x" in command("datastore", "verify").err


def test_the_flags_of_a_verify_reach_the_engine(api, repo, command):
    api.answer("verify", VERIFIED)

    command("datastore", "verify", "--deep", "--repair", "--forget", "data/a", "--forget", "data/b")

    asked = api.calls[0][2]
    assert (asked["deep"], asked["repair"], asked["forget"]) == (True, True, ("data/a", "data/b"))


def test_a_log_is_told_exactly_as_documented(api, repo, command):
    api.answer("log", [ROW])

    ran = command("datastore", "log", "-n", "5", "--json")

    assert ran.document == {
        "commits": [
            {
                "seq": 7,
                "commit": "c7",
                "at": "2030-01-02T03:04:05.678Z",
                "by": "ada@host",
                "kind": "push",
                "added": 1,
                "changed": 2,
                "deleted": 3,
                "bytes": 400,
            }
        ]
    }
    assert api.calls == [("log", (repo, 5), {})]


@pytest.mark.parametrize(("args", "grace"), [([], 86400.0), (["--grace", "90"], 90.0), (["--grace", "1w"], 604800.0)])
def test_a_gc_is_told_exactly_as_documented(api, repo, command, args, grace):
    api.answer("collect", CollectReport(1, 2, 3, 4, 500))

    ran = command("datastore", "gc", "--json", *args)

    assert ran.document == {
        "objects_deleted": 1,
        "leftovers_deleted": 2,
        "trash_deleted": 3,
        "nodes_deleted": 4,
        "bytes": 500,
    }
    told = api.calls[0][2]
    assert told.pop("progress") is not None
    assert told == {"dry_run": False, "grace_s": grace, "timeout": None, "engine": "auto"}


COMPACTED = CompactReport(
    12, 2, 2001, 1, 50_000, 60_000, 3, [Failure("data/f", "bad_content", "other bytes")], 1, ["look"]
)
TOLD = {
    "dry_run": False,
    "packs_before": 12,
    "packs_after": 2,
    "files_moved": 2001,
    "objects": 1,
    "bytes_moved": 50_000,
    "bytes_dead": 60_000,
    "skipped": 3,
    "failures": 1,
    "failed": [{"path": "data/f", "code": "bad_content", "message": "other bytes"}],
    "warnings": ["look"],
}


@pytest.mark.parametrize("args", [[], ["--dry-run"], ["--engine", "spark", "--timeout", "5m"]])
def test_a_compaction_is_told_exactly_as_documented(api, repo, command, args):
    api.answer("compact", COMPACTED)

    ran = command("datastore", "compact", "--json", *args)

    assert (ran.document, ran.code) == (TOLD, 1)
    told = api.calls[0][2]
    assert told.pop("progress") is not None
    assert told == {
        "dry_run": "--dry-run" in args,
        "timeout": 300.0 if args[2:] else None,
        "engine": "spark" if args[2:] else "auto",
    }


def test_a_compaction_without_failures_exits_with_0_and_leaves_out_what_has_no_value(api, repo, command):
    api.answer("compact", CompactReport(3, 3))

    ran = command("datastore", "compact", "--json")

    assert ran.code == 0
    assert ran.document.keys() == TOLD.keys() - {"failed", "warnings"}


def test_gc_compacts_first_if_asked(api, repo, command):
    api.answer("compact", COMPACTED)
    api.answer("collect", CollectReport(1, 2, 3, 4, 500, packs_deleted=1))

    ran = command("datastore", "gc", "--compact", "--grace", "90", "--json")

    assert [name for name, *_ in api.calls] == ["compact", "collect"]
    assert [told["grace_s"] for *_, told in api.calls] == [90.0, 90.0]
    assert ran.document["compact"] == TOLD
    assert ran.document["packs_deleted"] == 1
    assert ran.code == 1


@pytest.mark.parametrize(("args", "target"), [([], None), (["data/x"], "data/x")])
def test_a_hydration_is_told_exactly_as_documented(api, repo, command, args, target):
    api.answer("hydrate", TransferCounts(2, 30))

    assert command("datastore", "hydrate", *args, "--json").document == {"files": 2, "bytes": 30}
    assert api.calls[0][1] == (repo, target)


@pytest.mark.parametrize(
    ("args", "function"),
    [
        ([], "conflicts"),
        (["show", "data/x"], "conflicts"),
        (["take", "data/x"], "take_conflict"),
        (["drop", "data/x"], "drop_conflict"),
    ],
)
def test_conflicts_are_told_exactly_as_documented(api, repo, command, args, function):
    api.answer(function, [COPY] if function == "conflicts" else COPY)

    ran = command("datastore", "conflicts", *args, "--json")

    assert ran.document == {
        "conflicts": [
            {"path": "data/x", "copy": "/r/.bayou/conflicts/t/data/x", "at": "2030-01-02T03:04:05.678Z", "size": 5}
        ]
    }
    assert api.calls == [(function, (repo,) if function == "conflicts" else (repo, "data/x"), {})]


def test_a_copy_that_nobody_kept_cannot_be_shown(api, repo, command):
    api.answer("conflicts", [COPY])

    ran = command("datastore", "conflicts", "show", "data/y", "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert "`bayou datastore conflicts`" in ran.error["hint"]


def test_a_rate_limit_reaches_the_configuration_of_the_command(api, repo, command):
    api.answer("sync", full_report())
    command("datastore", "sync", "--limit-rate", "2M")
    assert api.calls[-1][1][0].config.sync.limit_rate == 2_000_000


def test_a_rate_that_is_none_is_a_wrong_use(repo, command):
    assert command("datastore", "sync", "--limit-rate", "soon").code == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["notes"], "1 name in the tree is not payload and stays here: notes"),
        (["notes", "todo"], "2 names in the tree are not payload and stay here: notes, todo"),
    ],
    ids=["one", "two"],
)
def test_names_that_are_not_payload_are_counted_in_a_sentence(repo, command, tmp_path, names, said):
    assert command("datastore", "setup", f"file://{tmp_path}/store").code == 0
    for name in names:
        (repo.root / ".bayou/tree" / name).write_text("x")

    ran = command("datastore", "sync", "--adopt", "--json")

    assert any(warning.startswith(said) for warning in ran.document["warnings"]), ran.document
