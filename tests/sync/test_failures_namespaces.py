"""Namespaces: section 9 of tests/failures.md. A store has its prefix and namespace from birth; it knows no other."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import NamespaceInvalid, SyncError
from bayou.objectstore import keys
from bayou.objectstore.keys import as_listed
from bayou_testing.faults import Hold, Rule
from bayou_testing.faulty import Crash, Fault, crash
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import entries_of

RAW = "data/t/m/n/1/raw"


def every_command(clone: Clone) -> None:
    """Run everything that sends a request."""
    clone.write_all({RAW: b"raw", "files/x": b"x", "files/y": b"y"})
    clone.push()
    clone.delete("files/y")
    clone.sync()
    clone.pull()
    clone.sync(dry_run=True)
    clone.status()
    api.log(clone.repo, 10)
    api.verify(clone.repo, deep=True, repair=True)
    api.collect(clone.repo, dry_run=True, grace_s=0)
    api.collect(clone.repo, dry_run=False, grace_s=0)


def test_f065_every_request_stays_inside_the_namespace(s3_team: Team, proxy: HttpProxy) -> None:
    # One DELETE for each key, so that the server's log names them all.
    team = Team(s3_team.root, s3_team.url, {**s3_team.options, "disable_bulk_delete": "true"})
    before = {key: team.store().put(as_listed(key), b"solo") for key in ("data/t/m/n/1/raw", "files/z")}
    proxy.log.clear()
    a = newcomer(team, "a", {"files/migrated": "migrated"})
    set_up(a, team, namespace="ns")
    every_command(a)
    lazy = newcomer(team, "lazy")
    set_up(lazy, team, namespace="ns", lazy=True)
    assert api.hydrate(lazy.repo, RAW).files == 1
    bucket, _, prefix = team.url.removeprefix("s3://").partition("/")
    inside = f"{prefix}/ns/"
    for row in proxy.log.rows():
        listing = {"list-type", "uploads"} & row.query.keys()
        key = row.query["prefix"] if listing else row.path.removeprefix(f"/{bucket}/")
        assert key.startswith(inside), row
    assert {row.method for row in proxy.log.rows()} == {"GET", "PUT", "HEAD", "DELETE"}
    assert entries_of(team.store("ns")).keys() == {RAW, "files/x", "files/migrated"}
    written = [key for key in team.payload_keys() if key not in before]
    assert all(re.fullmatch(r"ns/(.bayou|([^~]+/~[0-9A-Z]{26}))/.+", key) for key in written)
    assert before.keys() <= team.payload_keys()
    assert lazy.files.keys() == {RAW, "files/x", "files/migrated"}


def test_f066_directories_named_like_namespaces_are_not_uploaded(team: Team) -> None:
    a = team.clone("a", namespace="ns")
    for path in ("ns/data/t/x", "ns/ns/data/t/x", "other/data/t/x", "files/x"):
        a.lay(path, "content")
    first = a.push(adopt=True)
    assert (first.pushed.files, first.exit_code) == (1, 0)
    (warning,) = first.warnings
    assert warning.startswith("2 names")
    second = a.push(adopt=True)
    assert (second.pushed.files, second.warnings) == (0, [warning])
    assert entries_of(team.store("ns")).keys() == {"files/x"}


def test_f067_what_is_left_from_before_the_namespace_never_replaces_what_is_live(team: Team) -> None:
    live = team.clone("live", namespace="ns")
    live.write("files/x", "live")
    live.sync()
    a = team.clone("a")
    a.write("files/x", "from before")
    a.sync()
    a.repo.file.write_text(a.repo.file.read_text() + 'namespace = "ns"\n')
    a.reopen()
    report = a.sync()
    assert [(one.path, one.kept) for one in report.conflicts] == [("files/x", "remote")]
    assert (report.pushed.files, a.files) == (0, {"files/x": b"live"})
    assert Path(report.conflicts[0].copy or "").read_text() == "from before"
    assert live.sync().engine == "fast"


def test_f068_who_joins_a_shared_bucket_takes_in_nothing_of_others(team: Team) -> None:
    for namespace in ("a", None):
        other = team.clone(f"of-{namespace}", namespace=namespace) if namespace else team.clone("of-solo")
        other.write_all({f"files/{namespace}-{number}": b"theirs" for number in range(20)})
        other.sync()
    b, d = newcomer(team, "b", {"files/own": "own"}), newcomer(team, "d")
    joined = set_up(b, team, namespace="b")
    assert (joined.pulled, joined.discovered, b.files) == (0, False, {"files/own": b"own"})
    set_up(d, team)
    b.sync()
    d.sync()
    assert entries_of(team.store("b")).keys() == {"files/own"}
    assert team.uploads("b") == ["files/own"]
    assert {path.split("/")[0] for path in entries_of(team.store())} == {"files"}
    assert d.files.keys() == {f"files/None-{number}" for number in range(20)}


def test_f068_a_solo_discovery_takes_namespaces_for_other_stores(team: Team) -> None:
    a = team.clone("a", namespace="a")
    a.write("files/x", "of a")
    a.sync()
    team.store().put(as_listed("files/old"), b"solo")
    d = newcomer(team, "d")
    report = set_up(d, team)
    assert (report.discovered, d.files) == (True, {"files/old": b"solo"})
    assert entries_of(team.store()).keys() == {"files/old"}


@pytest.mark.usefixtures("loose_objects")
def test_f069_cleaning_up_one_namespace_touches_no_other(team: Team, wire: Wire) -> None:
    clones = {name: team.clone(f"of-{name}", namespace=name or None) for name in ("a", "b", "")}
    for clone in clones.values():
        clone.write_all({"files/x": b"live", "files/gone": b"gone"})
        clone.sync()
    b = clones["b"]
    b.delete("files/gone")
    b.sync()
    b.write("files/dead", "dead")
    wire.cut(Fault("put", r"head\.json$", nth=1, error=crash))
    with pytest.raises(Crash):
        b.push()
    wire.cut()
    b.lose_state()
    (b.repo.tree_root / "files/dead").unlink()
    store = team.store("b")
    for key in ("unknown/x", "files/found", "files/refused/.lock"):
        store.put(as_listed(key), b"somebody's")
    wire.seen.clear()
    before = team.keys()
    for _ in range(2):
        verified = api.verify(b.repo, deep=True, repair=True)
        assert verified.ok
    assert wire.sent("delete") == []
    assert before.keys() <= team.keys().keys()
    assert verified.leftovers == 2

    dry = api.collect(b.repo, dry_run=True, grace_s=0)
    assert wire.sent("delete") == []
    wire.seen.clear()
    real = api.collect(b.repo, dry_run=False, grace_s=0)
    assert (real.objects_deleted, real.leftovers_deleted) == (dry.objects_deleted, dry.leftovers_deleted) == (1, 1)
    assert real.nodes_deleted >= 1
    deleted = " ".join(wire.sent("delete")).split(" ")
    assert all(re.match(r"b/(files/~|\.bayou/(nodes|probe)/)", key) for key in deleted)
    gone = before.keys() - team.keys().keys()
    assert gone <= set(deleted)
    assert {"b/unknown/x", "b/files/found", "b/files/refused/.lock"} <= team.keys().keys()
    again = api.collect(b.repo, dry_run=False, grace_s=0)
    assert (again.objects_deleted, again.leftovers_deleted) == (0, 0)
    for clone in clones.values():
        assert api.verify(clone.repo, deep=True, repair=False).ok


def test_f070_namespaces_do_not_wait_for_each_other(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a", namespace="a"), s3_team.clone("b", namespace="b")
    for clone in (a, b):
        clone.sync(mode="push")
        clone.write("files/x", "x")
    held = Hold(threading.Event())
    proxy.faults.add(Rule(held, path="/a/"))
    reports: list[Any] = []
    waiting = threading.Thread(target=lambda: reports.append(a.push()))
    waiting.start()
    assert held.arrived.wait(30)
    assert b.push().pushed.files == 1
    api.collect(b.repo, dry_run=False, grace_s=0)
    assert not reports
    held.release.set()
    waiting.join()
    assert reports[0].pushed.files == 1


def test_f071_what_is_fetched_on_demand_lies_at_its_one_path(team: Team) -> None:
    a = team.clone("a", namespace="ns")
    a.write_all({RAW: b"raw", "data/t/m/n/1/metadata.yaml": b"m"})
    a.sync()
    lazy = team.clone("lazy", namespace="ns", hydrate="lazy")
    lazy.sync()
    assert lazy.files == {"data/t/m/n/1/metadata.yaml": b"m"}
    assert api.hydrate(lazy.repo, RAW).files == 1
    assert lazy.files == a.files
    assert lazy.sync().engine == "fast"


@pytest.mark.parametrize("hydrate", ["full", "lazy"])
def test_f072_a_missing_object_is_looked_for_nowhere_else(s3_team: Team, proxy: HttpProxy, hydrate: str) -> None:
    a = s3_team.clone("a", namespace="b")
    for path, data in {RAW: b"raw", "files/x": b"x"}.items():
        a.write(path, data)
        a.sync()
    entry = entries_of(s3_team.store("b"))[RAW]
    s3_team.store("b").delete([entry.key])
    for key in (entry.key, keys.payload(RAW, None)):
        s3_team.store().put(key, b"raw")
    c = s3_team.clone("c", namespace="b", hydrate=hydrate)
    proxy.log.clear()
    report = c.pull()
    if hydrate == "full":
        assert (report.missing, report.exit_code) == ([RAW], 1)
    else:
        with pytest.raises(SyncError, match=RAW):
            api.hydrate(c.repo, RAW)
    assert c.files == {"files/x": b"x"}
    prefix = s3_team.url.removeprefix("s3:/")
    assert all(row.path.startswith(f"{prefix}/b/") for row in proxy.log.rows())
    assert not c.status().in_sync or hydrate == "lazy"


@pytest.mark.parametrize(
    "name", ["data", "logs", "workflow-runs", ".bayou", "A", "a/b", "", "a" * 65, "-a", "a_b", "é", ".."]
)
def test_f073_a_bad_namespace_is_refused_before_any_request(team: Team, wire: Wire, name: str) -> None:
    a = newcomer(team, "a", {"files/x": "x"})
    config = a.repo.file.read_text()
    with pytest.raises(NamespaceInvalid):
        set_up(a, team, namespace=name)
    assert wire.seen == []
    assert (a.repo.file.read_text(), a.files) == (config, {"files/x": b"x"})


def test_f073_a_sibling_prefix_is_never_seen(s3_team: Team) -> None:
    proj, proj2 = (Team(s3_team.root, f"{s3_team.url}/{name}", s3_team.options) for name in ("proj", "proj2"))
    proj2.store().put(as_listed("files/x"), b"of proj2")
    proj.store().put(as_listed("files/y"), b"of proj")
    a = newcomer(proj, "a")
    assert set_up(a, proj).discovered
    assert a.files == {"files/y": b"of proj"}
    assert proj.payload_keys() == {"files/y"}
    assert api.verify(a.repo, deep=True, repair=True).checked == 1
    api.collect(a.repo, dry_run=False, grace_s=0)
    assert proj2.payload_keys() == {"files/x"}
