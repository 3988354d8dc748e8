"""Pulls of one model: what they bring, what they prove, and what they leave for a pull of everything (V3, V16)."""

from __future__ import annotations

from typing import Any

import pytest

from bayou.core.errors import StoreSwapped
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.sync.plan.policy import ModelRef, ModelScope
from bayou.sync.report import SyncReport
from bayou.sync.service import Datastore
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows

ONE = ModelRef("@org/shell", "11111111-1111", "one")
TWO = ModelRef("@org/shell", "22222222-2222", "two")


def pull(clone: Clone, *models: ModelRef) -> SyncReport:
    with Datastore(clone.repo) as datastore:
        return datastore.sync.pull_changed(models)


def push(clone: Clone) -> SyncReport:
    with Datastore(clone.repo) as datastore:
        return datastore.sync.push_changed()


def run(model: ModelRef, version: int = 1) -> dict[str, bytes]:
    """Return the files that a run of a model leaves."""
    data, outputs, evaluated = model.prefixes()
    return {
        f"{data}log/{version}/raw": f"{model.name} {version}".encode(),
        f"{data}log/{version}/metadata.yaml": f"version: {version}\n".encode(),
        f"{outputs}out-{version}.yaml": b"output",
        f"{evaluated}out-{version}.yaml": b"evaluated",
    }


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone that has pushed a run of each of two models."""
    clone = team.clone("a")
    clone.write_all(run(ONE) | run(TWO) | {"workflow-runs/w/r.yaml": b"run"})
    clone.push()
    return clone


def test_f110_a_pull_of_a_model_brings_all_that_belongs_to_it_and_nothing_else(team: Team, a: Clone) -> None:
    b = team.clone("b")

    report = pull(b, ONE)

    assert (b.files, report.pulled.files, report.exit_code) == (run(ONE), 4, 0)
    assert not b.status().in_sync, "V3: it says nothing about the rest"


def test_v3_a_pull_of_everything_brings_the_rest_once(team: Team, a: Clone) -> None:
    b = team.clone("b")
    pull(b, ONE)

    report = b.pull()

    assert (b.files, report.pulled.files) == (a.files, 5)
    assert b.status().in_sync


def test_two_pulls_of_one_model_each_bring_both(team: Team, a: Clone) -> None:
    b = team.clone("b")

    pull(b, ONE)
    pull(b, TWO)

    assert b.files == run(ONE) | run(TWO)


def test_f019_a_pull_of_a_model_that_nobody_stored_proves_nothing(team: Team, a: Clone) -> None:
    b = team.clone("b")
    b.pull()
    nobody = ModelRef("@org/shell", "33333333-3333", "new")
    a.write("files/later", "x")
    a.push()

    assert pull(b, nobody).pulled.files == 0
    report = b.pull()

    assert (report.pulled.files, b.files) == (1, a.files)


def test_v16_a_pull_of_a_model_in_a_tree_that_is_in_sync_is_one_conditional_request(
    team: Team, a: Clone, wire: Wire
) -> None:
    b = team.clone("b")
    b.pull()
    wire.seen.clear()

    report = pull(b, ONE)

    assert (report.engine, [(one.verb, one.key) for one in wire.seen]) == ("fast", [("get", ".bayou/head.json")])


def test_v16_a_second_pull_of_a_model_reads_the_head_and_nothing_else(team: Team, a: Clone, wire: Wire) -> None:
    b = team.clone("b")
    pull(b, ONE)
    wire.seen.clear()

    pull(b, ONE)

    assert [(one.verb, one.key) for one in wire.seen] == [("get", ".bayou/head.json")]


@pytest.fixture
def crowd(team: Team, a: Clone) -> Clone:
    """A clone whose store has twenty thousand entries more, in some forty leaves, that this test never fetches."""
    paths = [f"data/@org/shell/{number:05}/log/1/raw" for number in range(20_000)]
    commit_rows(team.store(), {path: Entry(path, ulid(), 1, bytes(32), None, None, 0) for path in paths})
    return a


def test_v16_a_pull_of_a_model_reads_only_the_nodes_on_its_way(team: Team, crowd: Clone, wire: Wire) -> None:
    b = team.clone("b")

    assert pull(b, ONE).pulled.files == 4

    assert 0 < len(wire.sent("get", "nodes/")) < 10


def test_v16_a_push_after_a_pull_of_a_model_does_not_look_at_what_this_tree_never_had(
    team: Team, crowd: Clone, wire: Wire
) -> None:
    b = team.clone("b")
    pull(b, ONE)
    b.write_all(run(ONE, 2))
    wire.seen.clear()

    report = push(b)

    assert (report.pushed.files, report.exit_code) == (4, 0)
    assert len(wire.sent("get", "nodes/")) < 10
    assert pull(crowd, ONE).pulled.files == 4


def test_f123_a_session_that_wrote_nothing_ends_with_one_request(team: Team, a: Clone, wire: Wire) -> None:
    b = team.clone("b")
    pull(b, ONE)
    wire.seen.clear()

    push(b)

    assert [(one.verb, one.key) for one in wire.seen] == [("get", ".bayou/head.json")]


def test_v5_what_a_peer_deleted_elsewhere_stays_until_everything_is_pulled(team: Team, a: Clone) -> None:
    b = team.clone("b")
    b.pull()
    a.delete(*run(ONE), *run(TWO))
    a.push()

    first = pull(b, ONE)
    there = dict(b.files)
    second = b.pull()

    assert (first.pulled.deleted, there) == (4, run(TWO) | {"workflow-runs/w/r.yaml": b"run"})
    assert (second.pulled.deleted, b.files) == (4, a.files)


def test_v5_a_pull_of_a_model_knows_whose_store_it_was(team: Team, a: Clone, tmp_path: Any) -> None:
    """What it brought is base: of another store in the same place it must not make deletes."""
    b = team.clone("b")
    pull(b, ONE)
    (tmp_path / "store").rename(tmp_path / "gone")
    (tmp_path / "store").mkdir()
    other = team.clone("other")
    other.write("files/x", "x")
    other.push()

    with pytest.raises(StoreSwapped):
        pull(b, ONE)

    assert b.files == run(ONE)


def test_f015_from_lazy_to_full_a_pull_of_a_model_brings_its_raw_files_and_the_next_pull_the_others(
    team: Team, a: Clone
) -> None:
    b = team.clone("b", hydrate="lazy")
    b.pull()
    b.repo.file.write_text(b.repo.file.read_text().replace('hydrate = "lazy"', 'hydrate = "full"'))
    b.reopen()

    pull(b, ONE)
    raw = {path for path in b.files if path.endswith("/raw")}
    between = b.status().in_sync
    b.pull()

    assert raw == {f"{ONE.prefixes()[0]}log/1/raw"}
    assert not between
    assert (b.files, b.status().in_sync) == (a.files, True)


def test_f015_a_push_does_not_take_note_of_a_policy_that_it_has_not_carried_out(team: Team, a: Clone) -> None:
    b = team.clone("b", hydrate="lazy")
    b.pull()
    b.repo.file.write_text(b.repo.file.read_text().replace('hydrate = "lazy"', 'hydrate = "full"'))
    b.reopen()

    b.push()
    between = b.status().in_sync
    b.pull()

    assert not between
    assert b.files == a.files


def test_f033_a_mass_delete_that_a_peer_was_allowed_is_followed_after_a_push_and_a_pull_of_a_model(
    team: Team, a: Clone
) -> None:
    doomed = [f"files/{number}" for number in range(300)]
    a.write_all(dict.fromkeys(doomed, b"x"))
    a.push()
    b = team.clone("b")
    b.pull()
    a.delete(*doomed)
    a.push(allow_mass_delete=True)
    b.write_all(run(ONE, 2))

    pull(b, ONE)
    push(b)
    report = b.pull()

    assert (report.pulled.deleted, report.exit_code) == (300, 0)


def test_a_change_here_that_meets_one_there_is_a_conflict_in_the_scope_and_waits_outside(team: Team, a: Clone) -> None:
    b = team.clone("b")
    b.pull()
    mine, other = ONE.prefixes()[1] + "out-1.yaml", TWO.prefixes()[1] + "out-1.yaml"
    for clone in (a, b):
        clone.write_all({path: f"{clone.repo.root}".encode() for path in (mine, other)})
    a.push()

    report = pull(b, ONE)

    assert [one.path for one in report.conflicts] == [mine]
    assert b.files[other] == f"{b.repo.root}".encode()


def test_t11_a_pull_of_a_model_forgets_no_file_that_is_known_to_be_untracked(team: Team, a: Clone) -> None:
    """A row that names everything does not cover what was listed as untracked, whoever has pulled since."""
    b = team.clone("b")
    b.lay("files/by-hand", "x")
    b.sync()
    a.write_all(run(ONE, 2))
    a.push()
    pull(b, ONE)
    with Datastore(b.repo) as datastore:
        datastore.sync.pull_changed()

    b.mark_dirty()
    report = push(b)

    assert (report.pushed.files, report.untracked) == (0, ["files/by-hand"])


def test_a_row_that_names_everything_is_looked_at_in_the_scope(team: Team, a: Clone) -> None:
    b = team.clone("b")
    b.pull()
    inside, outside = ONE.prefixes()[1] + "out-1.yaml", TWO.prefixes()[1] + "out-1.yaml"
    with Datastore(b.repo) as datastore:
        mark = datastore.sync.mark_dirty()
        b.lay(inside, "mine")
        b.lay(outside, "mine")
        mark.done()
        a.write_all({inside: b"theirs", outside: b"theirs"})
        a.push()

        report = datastore.sync.pull_changed([ONE])

    assert [one.path for one in report.conflicts] == [inside]
    assert b.files[outside] == b"mine"


@pytest.mark.parametrize(
    ("directory", "parts"),
    [
        ("", ["data/t/m", "outputs/t/m"]),
        ("data", ["data/t/m"]),
        ("data/t", ["data/t/m"]),
        ("data/t/m", ["data/t/m"]),
        ("data/t/m/n/1", ["data/t/m/n/1"]),
        ("data/t/mm", []),
        ("da", []),
        ("files", []),
    ],
)
def test_a_scope_knows_its_part_of_a_directory(directory: str, parts: list[str]) -> None:
    assert list(ModelScope(("data/t/m/", "outputs/t/m/")).below(directory)) == parts
