"""How commands end: by signals, by contention, side by side, and by a kill at any request (V12, V13, V14)."""

from __future__ import annotations

import signal
from threading import Event

import pytest

from bayou.leases import model_key, open_leases
from bayou_testing.faults import Delay, Hold, Rule, Silent
from bayou_testing.proxy import HttpProxy
from tests.session.commands import PATIENT, Commands, Running, clones, held
from tests.sync.conftest import Team

pytestmark = pytest.mark.s3

PAYLOAD = r"/packs/"
HEAD = r"/\.bayou/head\.json$"
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


def stuck(proxy: HttpProxy, method: str, path: str) -> Hold:
    """Hold the next request of this kind, for as long as it takes; `arrived` says that it is there."""
    hold = Hold(Event())
    proxy.faults.add(Rule(hold, method=method, path=path, nth=1))
    return hold


def arrived(hold: Hold, running: Running) -> None:
    """Wait for the request, however busy this machine is, unless the command ends without it."""
    while not hold.arrived.wait(0.1):
        assert running.process.poll() is None, running.finish().err


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
@pytest.mark.parametrize(
    ("method", "path", "journaled"),
    [("GET", HEAD, 0), ("PUT", PAYLOAD, 2)],
    ids=["pull", "push"],
)
def test_f076_a_signal_frees_the_lease_and_keeps_the_journal_while_a_request_hangs(
    s3_team: Team,
    proxy: HttpProxy,
    commands: Commands,
    number: int,
    code: int,
    word: str,
    method: str,
    path: str,
    journaled: int,
) -> None:
    (a,), _ = clones(s3_team, "a")
    hold = stuck(proxy, method, path)
    running = commands.start(a, *commands.put(a, "one"), main=PATIENT)
    arrived(hold, running)
    assert len(held(a)) == 1

    running.signal(number)
    ran = running.finish()

    assert (ran.code, ran.error["code"]) == (code, "cancelled")
    assert ran.error["message"] in (word, f"{word}; the input is kept here")
    assert held(a) == []
    assert a.status().journal_paths == journaled
    hold.release.set()
    assert a.sync().exit_code == 0


def test_f076_a_signal_while_the_lease_is_being_taken_leaves_none(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    """The answer to the write is on its way when the signal comes: the write itself has been made."""
    (a,), _ = clones(s3_team, "a")
    hold = stuck(proxy, "GET", r"leases/store\.json")
    running = commands.start(a, *commands.put(a, "one"), main=PATIENT)
    arrived(hold, running)
    assert len(held(a)) == 1

    running.signal(signal.SIGTERM)
    ran = running.finish()

    assert ran.code == 143
    assert (held(a), a.files) == ([], {})


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_f076_on_a_terminal_a_signal_ends_a_command_that_waits_for_the_store(
    s3_team: Team, proxy: HttpProxy, commands: Commands, number: int, code: int, word: str
) -> None:
    (a,), _ = clones(s3_team, "a")
    hold = stuck(proxy, "PUT", PAYLOAD)
    running = commands.start_on_a_terminal(a, *commands.put(a, "one")[:-1], main=PATIENT)
    arrived(hold, running)

    if number == signal.SIGINT:
        running.type(b"\x03")
    else:
        running.signal(number)
    ran = running.finish()

    assert ran.code == code
    assert word in ran.out
    assert (held(a), a.status().journal_paths) == ([], 2)


def test_f076_on_a_terminal_a_body_that_fails_leaves_no_lease(s3_team: Team, commands: Commands) -> None:
    (a,), _ = clones(s3_team, "a")

    ran = commands.start_on_a_terminal(a, "data", "append", "one", "nothing", str(a.repo.file)).finish()

    assert ran.code == 1
    assert "error:" in ran.out
    assert held(a) == []


@pytest.mark.usefixtures("loose_objects")
def test_a_signal_stops_a_transfer_of_many_files(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    """Threads that are inside requests hold nobody up, and begin no other."""
    (a,), _ = clones(s3_team, "a")
    a.write_all({f"files/{number:03}": b"x" for number in range(200)})
    proxy.faults.add(Rule(Silent(), method="PUT", path=r"/files/", nth=2, times=1000))
    first = Hold(Event())
    proxy.faults.add(Rule(first, method="PUT", path=r"/files/", nth=1))
    running = commands.start(a, "datastore", "sync", "--push", "--json", main=PATIENT)
    arrived(first, running)

    running.signal(signal.SIGTERM)
    ran = running.finish()

    assert (ran.code, ran.error["code"]) == (143, "cancelled")
    assert proxy.log.count(method="PUT", path=r"/files/") <= 64
    proxy.faults.clear()
    assert a.push().pushed.files == 200


def test_f080_one_models_long_method_holds_up_nobody_else(s3_team: Team, proxy: HttpProxy, commands: Commands) -> None:
    (a, b), (one, _) = clones(s3_team, "a", "b", models=("one", "two"))
    hold = stuck(proxy, "PUT", PAYLOAD)
    slow = commands.start(a, *commands.put(a, "one"))
    arrived(hold, slow)

    ran = commands.run(b, *commands.put(b, "two"), BAYOU_LOCK_TIMEOUT="10")

    assert (ran.code, ran.err) == (0, "")
    assert held(b) == [model_key(one.type, one.id)]
    hold.release.set()
    assert slow.finish().code == 0


def test_f092_contention_is_a_line_on_a_terminal_and_a_code_for_scripts(s3_team: Team, commands: Commands) -> None:
    (a,), (model,) = clones(s3_team, "a")
    with open_leases(a.repo).acquire(model_key(model.type, model.id)):
        watched = commands.start_on_a_terminal(a, *commands.put(a, "one")[:-1], BAYOU_LOCK_TIMEOUT="3")
        script = commands.start(a, *commands.put(a, "one"), BAYOU_LOCK_TIMEOUT="1")
        said = watched.read_until("is held by")
        seen, told = watched.finish(), script.finish()

    assert f"waiting: {model_key(model.type, model.id)} is held by" in " ".join(said.split())
    assert seen.code == 5
    assert (told.code, told.error["code"], told.document["pushed"]) == (5, "not_pushed", False)
    assert "unchanged" not in told.document, "there was a version to push"


def test_eight_writers_of_eight_models_do_not_wait_for_each_other(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    names = [f"m{number}" for number in range(8)]
    made, models = clones(s3_team, *names, models=names)
    proxy.faults.add(Rule(Delay(0.02)))

    writers = zip(made, names, strict=True)
    started = [commands.start(a, *commands.put(a, name)) for a, name in writers]
    ran = [one.finish() for one in started]

    assert [(one.code, one.err) for one in ran] == [(0, "")] * 8
    assert not proxy.log.rows(method="GET", path=r"/leases/model"), "each had its lease without a look at it"
    taken = [row.path for row in proxy.log.rows(method="PUT", path=r"/leases/model")]
    assert sorted(taken) == sorted(2 * [*set(taken)]), "one write takes each lease, and one frees it"
    assert len(set(taken)) == 8
    proxy.faults.clear()
    fresh = s3_team.clone("fresh")
    fresh.pull()
    assert {path.split("/")[3] for path in fresh.files} == {model.id for model in models}
    assert held(fresh) == []


def test_eight_writers_of_one_model_make_eight_versions_in_order(
    s3_team: Team, proxy: HttpProxy, commands: Commands
) -> None:
    names = [f"c{number}" for number in range(8)]
    made, _ = clones(s3_team, *names)
    proxy.faults.add(Rule(Delay(0.02)))

    writers = zip(made, names, strict=True)
    started = [commands.start(a, *commands.put(a, "one", name), BAYOU_LOCK_TIMEOUT="90") for a, name in writers]
    ran = [one.finish() for one in started]

    assert [one.code for one in ran] == [0] * 8, [one.err for one in ran]
    proxy.faults.clear()
    fresh = s3_team.clone("fresh")
    fresh.pull()
    raw = {int(path.split("/")[5]): content.decode() for path, content in fresh.files.items() if path.endswith("/raw")}
    assert raw == {one.document["version"]: name for one, name in zip(ran, names, strict=True)}
    assert sorted(raw) == list(range(1, 9))
    assert not [one for one in ran if one.document.get("warnings")], "none had to be renumbered"
