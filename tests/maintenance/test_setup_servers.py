"""`setup`, `status` and `replicate` where a server, a directory or a head is not as usual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bayou.core.errors import AccessDenied, DeadlinePassed, NoConditionalWrites, NoSuchBucket
from bayou.core.ids import ulid
from bayou.maintenance.replicate import replicate
from bayou.objectstore import keys
from bayou_testing.faults import Rule, Silent
from bayou_testing.faulty import Fault
from bayou_testing.quirks import QuirkyS3, environment
from bayou_testing.s3 import S3Endpoint
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Team, Wire
from tests.sync.indexes import entries_of
from tests.trusting import trust

pytestmark = pytest.mark.usefixtures("quick_probe")

Serve = Callable[..., Team]


@pytest.fixture
def served(seaweed: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Make a team whose store is on an S3 server with quirks."""
    for name, value in environment(seaweed).items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket("quirks")
    with ExitStack() as servers:

        def serve(**quirks: bool) -> Team:
            server = servers.enter_context(QuirkyS3(seaweed, **quirks))  # type: ignore[arg-type]
            return Team(tmp_path, f"s3://quirks/{ulid()}", {"endpoint": server.url})

        yield serve


def test_a_store_whose_server_wants_etags_without_quotes_is_set_up_joined_and_shared(served: Serve) -> None:
    team = served(unquoted_match=True)
    a, b = newcomer(team, "a", {"files/a": "a"}), newcomer(team, "b", {"files/b": "b"})
    set_up(a, team)
    set_up(b, team)
    for clone in (a, b):
        trust(clone.repo.root)
        assert clone.repo.config.datastore.options["unquoted_etags"] == "true"
    a.sync()
    assert a.files == b.files == {"files/a": b"a", "files/b": b"b"}


def test_a_client_without_the_option_pushes_to_such_a_server_all_the_same(served: Serve) -> None:
    team = served(unquoted_match=True)
    set_up(newcomer(team, "a", {"files/a": "a"}), team)
    other = team.clone("other")
    other.write("files/other", "other")
    assert other.sync().commit is not None
    assert other.files == {"files/a": b"a", "files/other": b"other"}


def test_a_server_without_conditional_writes_is_refused_and_the_repo_stays_as_it_was(served: Serve) -> None:
    team = served(no_conditions=True)
    a = newcomer(team, "a", {"files/a": "a"})
    before = a.repo.file.read_text()
    with pytest.raises(NoConditionalWrites, match="does not honour conditional writes"):
        set_up(a, team)
    assert a.repo.file.read_text() == before
    assert team.keys() == {}


def test_a_store_that_has_a_head_is_joined_without_a_probe(team: Team, wire: Wire) -> None:
    set_up(newcomer(team, "first", {"files/x": "x"}), team)
    assert wire.sent("put", "/probe/")
    wire.seen.clear()
    second = newcomer(team, "second")
    set_up(second, team)
    assert (wire.sent("put"), wire.sent("delete")) == ([], [])
    assert second.files == {"files/x": b"x"}


def test_a_setup_gives_up_at_its_timeout_and_names_the_address_that_is_silent(
    seaweed: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(seaweed).items():
        monkeypatch.setenv(name, value)
    with QuirkyS3(seaweed) as server:
        server.faults.add(Rule(Silent()))
        team = Team(tmp_path, "s3://quirks/silent", {"endpoint": server.url})
        a = newcomer(team, "a", {"files/a": "a"})
        with pytest.raises(DeadlinePassed, match=f"not finished after 1 s: .* s3://quirks at {server.url}"):
            set_up(a, team, timeout=1.0)
        assert a.repo.config.datastore.url is None
        assert {row.method for row in server.log.rows()} <= {"HEAD"}  # no cleanup is waited for


def test_a_directory_that_does_not_exist_yet_becomes_a_store_or_a_replica_if_its_parent_exists(team: Team) -> None:
    a = newcomer(team, "a", {"files/a": "a"})
    set_up(a, Team(team.root, (team.root / "made").as_uri(), {}))
    replica = team.root / "replica"
    assert replicate(a.repo, replica.as_uri(), dry_run=True).copied == 1
    assert not replica.exists()
    assert replicate(a.repo, replica.as_uri()).copied == 1
    reader = Team(team.root / "readers", replica.as_uri(), {}).clone("b")
    reader.pull()
    assert reader.files == {"files/a": b"a"}
    with pytest.raises(NoSuchBucket, match="there is no directory"):
        replicate(a.repo, (team.root / "no" / "parent").as_uri())


def test_status_says_that_the_head_was_lost(team: Team, wire: Wire) -> None:
    assert api.status(team.clone("early").repo).message == "the store has no index yet"
    a = newcomer(team, "a", {"files/a": "a"})
    set_up(a, team)
    team.store().delete([keys.HEAD])
    known = api.status(a.repo)
    assert (known.healthy, known.index) == (False, None)
    assert "has no index any more" in known.message
    assert "bayou datastore verify --repair" in known.message
    stranger = api.status(team.clone("stranger").repo)
    assert not stranger.healthy
    assert "no head: it was lost" in stranger.message
    wire.cut(Fault("list", error=lambda: AccessDenied("listing is not allowed")))
    assert not api.status(team.clone("unlucky").repo).healthy


def test_a_newcomer_takes_what_is_good_and_is_told_the_names_of_the_rest(
    team: Team, loose_objects: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = newcomer(team, "a", {f"files/{name}": name for name in ("good", "gone", "other", "spoiled")})
    set_up(a, team)
    found = {path: entry.key for path, entry in entries_of(team.store()).items()}
    team.store().put(found["files/spoiled"], b"another tool wrote this")
    team.store().put(found["files/other"], b"OTHER")  # of the same size
    team.store().delete([found["files/gone"]])
    b = newcomer(team, "b")
    lost, damaged = set_up(b, team).warnings
    assert b.files == {"files/good": b"good"}
    assert b.repo.config.datastore.url == team.url
    assert "lost the content of files/gone;" in lost
    assert "not pulled: files/other, files/spoiled;" in damaged
    report = api.verify(a.repo, deep=True, repair=True)
    assert (report.repaired, report.missing, report.changed) == (3, [], [])
    b.sync()
    assert b.files == a.files
    moved = entries_of(team.store())
    assert {path for path, key in found.items() if moved[path].key == key} == {"files/good"}
    monkeypatch.setattr("bayou.maintenance.setup.MOST_NAMED", 1)
    team.store().delete([moved["files/gone"].key, moved["files/other"].key])
    (cut,) = set_up(newcomer(team, "c"), team).warnings
    assert "files/gone and 1 more" in cut
