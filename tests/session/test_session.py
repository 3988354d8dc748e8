"""One write session: lease, pull, body, exactly one push, release (V12 to V15, V17)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bayou.core.errors import AccessDenied, DeadlinePassed, LeaseLost, LeaseTimeout, NotPushed, Unavailable, UsageError
from bayou.data.catalog import Catalog
from bayou.data.catalog.derive import RefreshReport
from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.leases import STORE, LeaseInfo, model_key, open_leases
from bayou.repo import Repo, init_repo
from bayou.session import Session, write_session
from bayou.sync.plan.policy import ModelRef
from bayou_testing.faulty import Fault
from tests.sync.conftest import Clone, Team, Wire

ONE = ModelRef("@org/shell", "11111111-1111-4111-8111-111111111111", "one")
TWO = ModelRef("@org/shell", "22222222-2222-4222-8222-222222222222", "two")
HEAD = r"head\.json$"


class Sorrow(Exception):
    """What goes wrong in a body."""


def leases(repo: Repo) -> list[LeaseInfo]:
    return open_leases(repo).list()


def save(session: Session, content: bytes = b"x", model: ModelRef = ONE) -> int:
    return session.records.data.save(model, "log", content).version


def refused() -> BaseException:
    return AccessDenied("no, you may not")


@pytest.fixture
def a(team: Team, wire: Wire) -> Clone:
    """A clone on a store with a head, and nothing else; requests are watched from here on."""
    clone = team.clone("a")
    clone.push()
    wire.seen.clear()
    return clone


@contextmanager
def saving(clone: Clone, *, then: BaseException | None = None) -> Iterator[Session]:
    """Save something in a session, and then go wrong if told so."""
    with write_session(clone.repo, models=[ONE]) as session:
        save(session)
        yield session
        if then is not None:
            raise then


def test_v14_a_session_pushes_once_and_gives_its_lease_up(team: Team, a: Clone, wire: Wire) -> None:
    with saving(a) as session:
        assert [lease.key for lease in leases(a.repo)] == [model_key(ONE.type, ONE.id)]
        assert not wire.sent("put", HEAD)

    assert len(wire.sent("put", HEAD)) == 1
    assert leases(a.repo) == []
    assert session.pushed is not None
    assert (session.pushed.pushed.files, a.status().journal_paths) == (2, 0)


def test_what_one_session_writes_the_next_one_reads(team: Team, a: Clone) -> None:
    with saving(a):
        pass
    b = team.clone("b")

    with write_session(b.repo, models=[ONE]) as session:
        item = session.records.data.get(ONE, "log")
        assert session.records.data.read(item) == b"x"
        assert [row.version for row in session.records.data.versions(ONE, "log")] == [1], "the catalog knows, too"
        assert save(session) == 2

    assert session.pulled is not None
    assert session.pulled.pulled.files == 2


def test_f110_a_session_finds_all_that_belongs_to_its_model_without_a_rebuild(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = team.clone("b")
    with write_session(b.repo, models=[ONE]):
        pass  # b has a catalog, of nothing
    with write_session(a.repo, models=[ONE]) as session:
        save(session)
        output = Output("out-1", "run", "succeeded", "2031-05-04T08:00:00.000Z")
        session.records.outputs.save(ONE, output)
        session.records.evaluated.save_definition(ONE, "out-1", {"name": "one"})

    seen: list[RefreshReport] = []
    real = Catalog.refresh
    monkeypatch.setattr(Catalog, "refresh", lambda catalog: (seen.append(real(catalog)), seen[-1])[1])
    with write_session(b.repo, models=[ONE]) as session:
        records = session.records
        assert [row.id for row in records.outputs.list(ONE)] == ["out-1"]
        assert records.outputs.get("out-1").method == "run"
        assert records.evaluated.get_definition(ONE, "out-1") == {"name": "one"}
        assert [row.name for row in records.data.find(model="one")] == ["log"]
    assert seen
    assert not [one for one in seen if one.rebuilt]


def test_a_session_pulls_what_belongs_to_its_models_and_nothing_else(team: Team, a: Clone) -> None:
    with write_session(a.repo, models=[ONE, TWO]) as session:
        save(session, model=ONE)
        save(session, model=TWO)
    b = team.clone("b")

    with write_session(b.repo, models=[TWO]):
        pass

    assert {path.split("/")[3] for path in b.files} == {TWO.id}


@pytest.mark.parametrize("store_wide", [False, True])
def test_a_session_without_models_pulls_everything(team: Team, a: Clone, store_wide: bool) -> None:
    with write_session(a.repo, models=[ONE, TWO]) as session:
        save(session, model=ONE)
        save(session, model=TWO)
    b = team.clone("b")

    with write_session(b.repo, models=None if store_wide else ()):
        held = [lease.key for lease in leases(b.repo)]

    assert b.files == a.files
    assert held == ([STORE] if store_wide else [])


def test_f076_a_body_that_fails_is_pushed_once_and_its_error_is_the_one(team: Team, a: Clone, wire: Wire) -> None:
    sorrow = Sorrow("it went wrong")

    with pytest.raises(Sorrow) as caught, saving(a, then=sorrow):
        pass

    assert caught.value is sorrow
    assert not getattr(sorrow, "__notes__", [])
    assert len(wire.sent("put", HEAD)) == 1
    assert leases(a.repo) == []
    b = team.clone("b")
    b.pull()
    assert b.files == a.files, "what a failed run left matters to peers, too"


def test_f076_a_body_that_fails_before_it_writes_leaves_no_lease_and_no_commit(a: Clone, wire: Wire) -> None:
    with pytest.raises(Sorrow), write_session(a.repo, models=[ONE]):
        raise Sorrow

    assert leases(a.repo) == []
    assert not wire.sent("put", HEAD)


def test_f100_a_push_that_fails_is_named_and_the_next_one_carries_all(team: Team, a: Clone, wire: Wire) -> None:
    wire.cut(Fault(verb="put", key=HEAD, error=refused))

    with pytest.raises(NotPushed) as caught, saving(a):
        pass

    assert isinstance(caught.value.cause, AccessDenied)
    assert caught.value.message == "what was written here could not be pushed: no, you may not"
    assert len(wire.sent("put", HEAD)) == 1, "one push, and no second one"
    assert leases(a.repo) == []
    assert a.status().journal_paths == 2
    wire.cut()
    assert a.push().pushed.files == 2


def test_v17_the_error_of_the_body_stays_first_and_that_of_the_push_is_said_with_it(a: Clone, wire: Wire) -> None:
    wire.cut(Fault(verb="put", key=HEAD, error=refused))
    sorrow = UsageError("it went wrong", hint="do it otherwise")

    with pytest.raises(UsageError) as caught, saving(a, then=sorrow):
        pass

    assert caught.value is sorrow
    assert (sorrow.message, sorrow.hint) == ("it went wrong", "do it otherwise")
    (note,) = sorrow.__notes__
    assert note.startswith("what was written here could not be pushed: no, you may not")
    assert len(wire.sent("put", HEAD)) == 1
    assert (leases(a.repo), a.status().journal_paths) == ([], 2)


def test_f101_files_that_could_not_be_pushed_are_in_the_report(a: Clone, wire: Wire) -> None:
    wire.cut(Fault(verb="put", key=r"/packs/", error=refused))

    sessions: list[Session] = []
    with pytest.raises(NotPushed), saving(a) as session:
        sessions.append(session)

    (session,) = sessions
    assert session.pushed is not None
    assert (session.pushed.exit_code, [one.code for one in session.pushed.failed]) == (1, 2 * ["access_denied"])
    assert [Path(one.path).name for one in session.pushed.failed] == ["metadata.yaml", "raw"], "both were in the pack"


def test_f086_a_pull_that_fails_is_the_only_error_and_nothing_is_pushed(a: Clone, wire: Wire) -> None:
    a.write("files/x", "x")
    wire.cut(Fault(verb="get", key=HEAD, error=refused))
    wire.seen.clear()
    began = []

    with pytest.raises(AccessDenied), write_session(a.repo, models=[ONE]):
        began.append(True)

    assert not began, "the body relies on what the pull brings"
    assert not wire.sent("put", "nodes|head|files/")
    assert leases(a.repo) == []


def test_f086_the_deadline_of_a_session_is_one_error_and_frees_everything(a: Clone, wire: Wire) -> None:
    wire.cut(Fault(verb="get", key=HEAD, error=lambda: Unavailable("not now")))

    with pytest.raises(DeadlinePassed) as caught, write_session(a.repo, models=[ONE], timeout=2):
        pass

    wire.cut()
    assert not getattr(caught.value, "__notes__", [])
    assert leases(a.repo) == []
    assert a.sync().exit_code == 0, "the lock of this repo is free"


def test_f075_without_a_lease_nothing_is_written(a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0.5")
    wire.cut(Fault(key="leases/", error=lambda: Unavailable("locking is down")))
    began = []

    with pytest.raises(Unavailable, match="locking is down"), write_session(a.repo, models=[ONE]):
        began.append(True)

    assert (began, a.files, a.status().journal_paths) == ([], {}, 0)
    assert not wire.sent("put", "nodes|head|data/")


def test_offline_there_is_neither_lease_nor_pull_nor_push(team: Team, a: Clone, wire: Wire) -> None:
    offline = Repo(a.repo.root, a.repo.config, offline=True)

    with write_session(offline, models=[ONE]) as session:
        save(session)

    assert (session.pulled, session.pushed, wire.seen) == (None, None, [])
    assert a.status().journal_paths == 2
    assert a.push().pushed.files == 2


def test_a_directory_has_leases_and_nothing_to_pull_or_push(team: Team) -> None:
    repo = init_repo(team.root / "alone")

    with write_session(repo, models=[ONE]) as session:
        save(session)
        held = [lease.key for lease in leases(repo)]

    assert held == [model_key(ONE.type, ONE.id)]
    assert (session.pulled, session.pushed, leases(repo)) == (None, None, [])


def lose(session: Session, repo: Repo) -> None:
    """Let somebody take the lease away, and its holder notice."""
    for lease in session.leases:
        assert open_leases(repo).release(lease.key, lease.nonce)
        lease.renew()


def test_v13_a_lost_lease_ends_the_session_before_its_next_write(a: Clone, wire: Wire) -> None:
    def body() -> None:
        with write_session(a.repo, models=[ONE]) as session:
            save(session)
            lose(session, a.repo)
            save(session)

    with pytest.raises(LeaseLost) as caught:
        body()

    assert {path.split("/")[5] for path in a.files} == {"1"}
    assert not wire.sent("put", HEAD), "nothing is pushed any more"
    assert a.status().journal_paths == 2, "and nothing is lost"
    assert not getattr(caught.value, "__notes__", []), "it is said once"


def test_v13_a_lease_that_is_lost_at_the_end_ends_the_session_before_its_push(a: Clone, wire: Wire) -> None:
    def body() -> None:
        with write_session(a.repo, models=[ONE]) as session:
            save(session)
            lose(session, a.repo)

    with pytest.raises(NotPushed) as caught:
        body()

    assert isinstance(caught.value.cause, LeaseLost)
    assert not wire.sent("put", HEAD)
    assert a.status().journal_paths == 2


@pytest.mark.parametrize(
    "attempt",
    [
        lambda records: records.tree.write("files/x", b"x"),
        lambda records: records.tree.append("files/x", b"x"),
        lambda records: records.tree.delete("files/x"),
        lambda records: records.data.save(ONE, "log", b"x"),
        lambda records: records.sync.mark_dirty(),
        lambda records: records.sync.mark_deleted("files/x"),
    ],
    ids=["write", "append", "delete", "save", "mark_dirty", "mark_deleted"],
)
@pytest.mark.parametrize("shared", [True, False], ids=["store", "directory"])
def test_v13_nothing_goes_around_the_guard(
    team: Team, a: Clone, attempt: Callable[[Records], object], shared: bool
) -> None:
    repo = a.repo if shared else init_repo(team.root / "alone")

    def body() -> None:
        with write_session(repo, models=[ONE]) as session:
            lose(session, repo)
            attempt(session.records)
            pytest.fail("it went through")

    with pytest.raises(LeaseLost):
        body()

    assert not [file for file in repo.tree_root.rglob("*") if file.is_file()]
    assert not shared or a.status().journal_paths == 0


def test_f076_an_interrupt_gives_the_lease_up_pushes_nothing_and_keeps_the_journal(a: Clone, wire: Wire) -> None:
    with pytest.raises(KeyboardInterrupt), saving(a, then=KeyboardInterrupt()):
        pass

    assert not wire.sent("put", HEAD)
    assert (leases(a.repo), a.status().journal_paths) == ([], 2)


def test_f089_what_a_session_lends_its_children_is_in_their_environment(
    a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with saving(a) as session:
        for name, value in session.environment.items():
            monkeypatch.setenv(name, value)

        with write_session(a.repo, models=[ONE]) as child:
            assert save(child) == 2

        assert [lease.key for lease in leases(a.repo)] == [model_key(ONE.type, ONE.id)], "the child took nothing away"
    assert set(session.environment) <= set(os.environ)


def test_f092_whoever_waits_is_told_for_whom(a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "1.5")
    told: list[str] = []

    with saving(a):
        with pytest.raises(LeaseTimeout), write_session(a.repo, models=[ONE], on_wait=told.append):
            pass
        with write_session(a.repo, models=[TWO], on_wait=pytest.fail) as other:
            save(other, model=TWO)

    assert told[0].startswith(f"waiting: {model_key(ONE.type, ONE.id)} is held by ")
    assert f"pid {os.getpid()}" in told[0] or str(os.getpid()) in told[0]


def test_two_machines_that_worked_offline_have_both_versions(team: Team, a: Clone) -> None:
    """The lease keeps those apart who can ask for it; of the others, the later committer renumbers its own."""
    b = team.clone("b")
    for clone, content in ((a, b"of a"), (b, b"of b")):
        with write_session(Repo(clone.repo.root, clone.repo.config, offline=True), models=[ONE]) as session:
            save(session, content)

    for clone in (a, b, a):
        with write_session(clone.repo, models=[ONE]) as session:
            pass

    with write_session(a.repo, models=[ONE]) as session:
        data = session.records.data
        assert [row.version for row in data.versions(ONE, "log")] in ([1, 2], [2, 1])
        assert [data.read(data.get(ONE, "log", number)) for number in (1, 2)] == [b"of a", b"of b"]
