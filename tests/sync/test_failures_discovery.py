"""Discovery: section 7 of tests/failures.md. A store without a head is full until a listing has proved otherwise."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import bayou.maintenance.setup as setup_code
import bayou.sync.plan.discovery_job as job_code
from bayou.core.errors import AccessDenied, BayouError, NotFound, Unavailable
from bayou.objectstore import keys
from bayou.sync.plan.discovery_job import discover
from bayou.sync.run import run
from bayou_testing.faults import Fail, Hold, Rule
from bayou_testing.faulty import Fault
from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from bayou_testing.seaweed import SeaweedEndpoint
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import UPLOADS, Team, Wire
from tests.sync.indexes import entries_of, head_of

FOUND = {"data/t/m/n/1/raw": b"one", "files/a": b"two", "outputs/t/m/o.yaml": b"three"}


def lay(server: S3Endpoint, team: Team, files: dict[str, bytes]) -> None:
    """Put objects into the bucket as another program would."""
    for key, content in files.items():
        status, _ = server.request("PUT", f"/{team.url.removeprefix('s3://')}/{key}", body=content)
        assert status == 200


def lay_files(team: Team, *keys: str) -> None:
    for key in keys:
        file = Path(team.url.removeprefix("file://")) / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {key}")


def has_head(team: Team) -> bool:
    try:
        team.store().head(keys.HEAD)
    except NotFound:
        return False
    return True


def test_f048_setup_finds_what_an_old_bucket_holds(s3_team: Team, s3_env: S3Endpoint, proxy: HttpProxy) -> None:
    lay(s3_env, s3_team, FOUND)
    before = s3_team.keys()
    a = newcomer(s3_team, "a")
    report = set_up(a, s3_team)
    assert (report.discovered, report.pulled, report.pushed) == (True, 3, 0)
    assert report.bytes_pulled == sum(map(len, FOUND.values()))
    assert a.files == FOUND
    assert all("/.bayou/" in row.path for row in proxy.log.writes() if row.method == "PUT")
    assert {path: entry.key for path, entry in entries_of(s3_team.store()).items()} == {path: path for path in FOUND}
    assert {key: s3_team.keys()[key] for key in before} == before
    assert a.sync().engine == "fast"


def test_f049_a_reader_keeps_its_discovery_to_itself(
    s3_team: Team, seaweed: SeaweedEndpoint, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(seaweed, s3_team, FOUND)
    reader, writer = s3_team.clone("reader"), newcomer(s3_team, "writer")

    def read() -> Any:
        with monkeypatch.context() as patch:
            for name, value in seaweed.limited().env().items():
                patch.setenv(name, value)
            proxy.log.clear()
            report = reader.pull()
        assert not proxy.log.writes()
        return report

    first = read()
    assert (first.pulled.files, first.exit_code, reader.files) == (3, 0, FOUND)
    assert not has_head(s3_team)
    assert read().pulled.files == 0
    set_up(writer, s3_team)
    later = read()
    assert (later.pulled.files, later.untracked, later.conflicts) == (0, [], [])
    assert not proxy.log.rows(method="GET", path="/(raw|a|o.yaml)$")
    assert (read().engine, len(proxy.log.rows())) == ("fast", 1)


def test_f050_locks_that_come_and_go_are_no_payload(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = [".lock", "data/.lock", ".locks/x.lock", "data/.locks/x.lock", ".bayou/leases/store.json"]
    lay_files(team, "data/t/x", *locks)
    real = run

    def unlocked(context: Any) -> Any:
        for name in locks:
            (Path(team.url.removeprefix("file://")) / name).unlink()
        return real(context)

    monkeypatch.setattr(setup_code, "run", unlocked)
    a = newcomer(team, "a")
    report = set_up(a, team)
    assert (report.discovered, report.pulled, report.refused) == (True, 1, [])
    assert entries_of(team.store()).keys() == {"data/t/x"}


@pytest.mark.parametrize("rival", ["discovers too", "pushes its first file"])
def test_f051_of_two_that_create_the_head_one_wins_and_both_go_on_from_it(
    s3_team: Team, s3_env: S3Endpoint, proxy: HttpProxy, rival: str
) -> None:
    lay(s3_env, s3_team, FOUND)
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/of-a", "a")
    ours = {"files/of-a": b"a"}
    if rival == "pushes its first file":
        b.write("files/of-b", "b")
        ours["files/of-b"] = b"b"
    held = Hold(threading.Event())
    proxy.faults.add(Rule(held, method="PUT", path=r"head\.json$", nth=1))
    reports: list[Any] = []
    push = threading.Thread(target=lambda: reports.append(a.sync()))
    push.start()
    assert held.arrived.wait(30)
    b.push()
    store_id = head_of(s3_team.store()).head.store
    held.release.set()
    push.join()
    assert reports[0].exit_code == 0
    creations = [row for row in proxy.log.rows(method="PUT", path=r"head\.json$") if "if-none-match" in row.headers]
    assert sorted(row.status or 0 for row in creations) == [200, 412]
    writes = [row.path for row in proxy.log.writes() if row.method == "PUT" and "/probe/" not in row.path]
    assert not [path for path in takewhile(lambda path: "head.json" not in path, writes) if re.search(UPLOADS, path)]
    b.sync()
    a.sync()
    assert a.files == b.files == {**FOUND, **ours}
    assert head_of(s3_team.store()).head.store == store_id
    assert entries_of(s3_team.store()).keys() == a.files.keys()


@pytest.mark.parametrize("verb", ["push", "pull", "setup"])
def test_f051_a_head_that_appears_before_the_listing_is_read(
    team: Team, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """B creates the head and uploads while A, who saw none, is about to list."""
    lay_files(team, *FOUND)
    b = team.clone("b")
    b.write("files/of-b", "b")
    real = discover

    def overtaken(store: Any, engines: Any) -> Any:
        monkeypatch.setattr(job_code, "discover", real)
        b.sync()
        return real(store, engines)

    monkeypatch.setattr(job_code, "discover", overtaken)
    a = newcomer(team, "a") if verb == "setup" else team.clone("a")
    set_up(a, team) if verb == "setup" else a.sync(mode=verb)
    a.sync()
    assert a.files.keys() == b.files.keys() == {*FOUND, "files/of-b"}
    assert entries_of(team.store()).keys() == a.files.keys()


def test_f052_only_our_own_payload_is_taken_in(team: Team) -> None:
    foreign = [
        "other/data/t/x",
        ".datastore-index.json",
        "_index/part-1",
        "x/.namespace.json",
        "_catalog.db",
        "data/_catalog.db",
        "data/t/.datastore-sync-state.json",
        "tenant/.bayou/head.json",
        "tenant/data/t/x",
        "data/inner/.bayou/head.json",
        "data/inner/data/t/x",
    ]
    lay_files(team, "data/t/x", "files/y", *foreign)
    before = team.keys()
    a, b = newcomer(team, "a"), team.clone("b")
    found = b.pull()
    assert any(f"{len(foreign)} keys" in warning for warning in found.warnings)
    report = set_up(a, team)
    assert (report.discovered, report.pulled) == (True, 2)
    assert any(f"{len(foreign)} keys" in warning for warning in report.warnings)
    assert a.files.keys() == b.files.keys() == {"data/t/x", "files/y"}
    assert entries_of(team.store()).keys() == {"data/t/x", "files/y"}
    assert {key: team.keys()[key] for key in before} == before


@pytest.mark.parametrize("verb", ["setup", "sync", "push"])
def test_f053_a_forbidden_listing_is_no_empty_bucket(
    s3_team: Team, s3_env: S3Endpoint, proxy: HttpProxy, verb: str
) -> None:
    lay(s3_env, s3_team, FOUND)
    proxy.faults.add(Rule(Fail(403), method="GET", query="list-type"))
    a = newcomer(s3_team, "a") if verb == "setup" else s3_team.clone("a")
    a.lay("files/own", "own")
    config = a.repo.file.read_text()
    with pytest.raises(AccessDenied) as refused:
        set_up(a, s3_team) if verb == "setup" else a.sync(mode=verb)
    assert "LIST" in refused.value.message or "list" in refused.value.message
    proxy.faults.clear()
    assert not has_head(s3_team)
    assert (a.repo.file.read_text(), a.files) == (config, {"files/own": b"own"})


@pytest.mark.parametrize("verb", ["setup", "sync", "push"])
def test_f053_a_listing_that_breaks_off_is_no_short_bucket(
    team: Team, wire: Wire, no_backoff: None, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    lay_files(team, *FOUND)
    monkeypatch.setattr("bayou.objectstore.backends.directory.PAGE", 2)
    wire.cut(Fault("list", "^$", nth=2, times=1000, error=lambda: Unavailable("503 from the store")))
    a = newcomer(team, "a") if verb == "setup" else team.clone("a")
    config = a.repo.file.read_text()
    with pytest.raises(BayouError, match="503 from the store"):
        set_up(a, team) if verb == "setup" else a.sync(mode=verb)
    assert not has_head(team)
    assert (a.repo.file.read_text(), a.files) == (config, {})
    wire.cut()
    assert team.clone("b").sync().pulled.files == 3


def lay_on_s3(request: pytest.FixtureRequest, team: Team) -> Callable[[str, bytes], None]:
    server: S3Endpoint = request.getfixturevalue("s3_env")
    return lambda key, content: lay(server, team, {key: content})


def lay_on_gcs(request: pytest.FixtureRequest, team: Team) -> Callable[[str, bytes], object]:
    server: GcsServer = request.getfixturevalue("gcs")
    prefix = team.url.removeprefix("gs://bayou/")
    return lambda key, content: server.put_raw(f"{prefix}/{key}", content)


@pytest.mark.parametrize(("kind", "by"), [("s3_team", lay_on_s3), ("gcs_team", lay_on_gcs)])
def test_f054_folders_of_a_web_console_are_nothing(request: pytest.FixtureRequest, kind: str, by: Any) -> None:
    team: Team = request.getfixturevalue(kind)
    put = by(request, team)
    for key in ("data/", "data/t/", "data/empty/", "files/between/", "logs/"):
        put(key, b"")
    for key, content in {**FOUND, "data/t/empty": b""}.items():
        put(key, content)
    before = team.keys()
    a, b = newcomer(team, "a"), team.clone("b")
    assert b.pull().exit_code == 0
    report = set_up(a, team)
    assert (report.pulled, report.refused) == (4, [])
    assert a.files == b.files == {**FOUND, "data/t/empty": b""}
    assert entries_of(team.store()).keys() == a.files.keys()
    verified = api.verify(a.repo, deep=True, repair=True)
    assert (verified.ok, verified.unindexed, verified.refused) == (True, [], [])
    api.collect(a.repo, dry_run=False, grace_s=0)
    assert before.keys() <= team.keys().keys()


@pytest.mark.parametrize(
    ("first", "verb"),
    [("a peer", "sync"), ("a peer", "pull"), ("a peer", "push"), ("this client", "sync"), ("this client", "push")],
)
def test_f049_what_another_program_removed_before_the_first_head_stays_here(team: Team, first: str, verb: str) -> None:
    """The first head lacks it, and no client ever deleted it: its absence is no delete (V5)."""
    lay_files(team, *FOUND)
    a, peer = team.clone("a"), team.clone("peer")
    a.pull()
    mine = a.files
    (Path(team.url.removeprefix("file://")) / "files/a").unlink()
    if first == "a peer":
        peer.write("files/of-peer", "new")
        peer.push()
    a.write("files/mine", "mine")
    planned = a.sync(mode=verb, dry_run=True)
    assert ("files/a", "delete-local") not in {(one.path, one.action) for one in planned.actions}

    report = a.sync(mode=verb)

    assert a.files.items() >= mine.items()
    assert (report.pulled.deleted, report.untracked) == (0, ["files/a"])
    assert any("no client deleted them: files/a;" in text for text in report.warnings)
    assert a.sync().untracked == ["files/a"]
    assert a.sync(adopt=True).pushed.files == 1
    fresh = team.clone("fresh")
    fresh.pull()
    assert fresh.files == a.files


def test_f049_what_a_client_deleted_after_the_first_head_goes_here_too(team: Team) -> None:
    lay_files(team, *FOUND)
    a, peer = team.clone("a"), team.clone("peer")
    a.pull()
    peer.sync()
    peer.delete("files/a")
    peer.push()

    report = a.pull()

    assert (report.pulled.deleted, report.untracked, report.warnings) == (1, [], [])
    assert a.files.keys() == FOUND.keys() - {"files/a"}
