"""Lazy trees: raw content is absent until somebody asks for it, by path, by model, or all of it."""

from __future__ import annotations

import pytest

from bayou.core.errors import NotFound
from bayou.sync.service import Datastore
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.conftest import Clone, Team

MODELS = ("one", "two")
RAWS = {f"data/t/{model}/n/{number}/raw": f"{model} {number}".encode() for model in MODELS for number in (1, 2)}
METAS = {path.replace("/raw", "/metadata.yaml"): b"m" for path in RAWS}
REST = {"files/raw": b"no version's", "data/t/one/raw": b"no version's", "outputs/t/one/o.yaml": b"o"}


def stocked(team: Team) -> Clone:
    full = team.clone("full")
    full.write_all({**RAWS, **METAS, **REST})
    full.sync()
    return full


@pytest.fixture
def lazy(team: Team) -> Clone:
    """A lazy clone of a store with four versions."""
    stocked(team)
    clone = team.clone("lazy", hydrate="lazy")
    clone.sync()
    return clone


def test_a_lazy_tree_has_everything_but_raw_content_and_is_in_sync(lazy: Clone) -> None:
    assert lazy.files == {**METAS, **REST}
    assert lazy.status().in_sync
    assert lazy.sync().engine == "fast"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("data/t/one/n/1/raw", {"data/t/one/n/1/raw"}),
        ("data/t/one/n/1", {"data/t/one/n/1/raw"}),
        ("data/t/one/n/", {"data/t/one/n/1/raw", "data/t/one/n/2/raw"}),
        ("./data/t/two/../one/n//1/", {"data/t/one/n/1/raw"}),
        ("{root}/data/t/one/n/1/raw", {"data/t/one/n/1/raw"}),
        ("two", {"data/t/two/n/1/raw", "data/t/two/n/2/raw"}),
        ("./two/", {"data/t/two/n/1/raw", "data/t/two/n/2/raw"}),
        (None, set(RAWS)),
        (".", set(RAWS)),
        ("{root}/", set(RAWS)),
    ],
)
def test_what_is_asked_for_is_fetched_and_nothing_else(lazy: Clone, target: str | None, expected: set[str]) -> None:
    target = target and target.format(root=lazy.repo.tree_root)
    moved = api.hydrate(lazy.repo, target)
    assert (moved.files, moved.bytes) == (len(expected), sum(len(RAWS[path]) for path in expected))
    assert lazy.files == {**METAS, **REST, **{path: RAWS[path] for path in expected}}
    assert lazy.status().in_sync
    assert lazy.sync().engine == "fast"
    assert api.hydrate(lazy.repo, target).files == 0


def test_a_program_hydrates_through_its_datastore(lazy: Clone) -> None:
    path = "data/t/one/n/1/raw"
    with Datastore(lazy.repo) as datastore:
        assert not datastore.tree.exists(path)
        assert datastore.sync.hydrate(path).files == 1
        with datastore.tree.open(path) as file:
            assert file.read() == RAWS[path]


def test_asking_for_what_nobody_has_is_an_error(lazy: Clone) -> None:
    with pytest.raises(NotFound, match="three"):
        api.hydrate(lazy.repo, "three")
    assert api.hydrate(lazy.repo, "files/raw").files == 0


@pytest.mark.usefixtures("loose_objects")
def test_hydrating_costs_one_request_a_file(s3_team: Team, proxy: HttpProxy) -> None:
    stocked(s3_team)
    lazy = s3_team.clone("lazy", hydrate="lazy")
    lazy.sync()
    proxy.log.clear()
    assert api.hydrate(lazy.repo, "one").files == 2
    assert [row.method for row in proxy.log.rows()] == ["GET", "GET"]


def test_hydrating_files_that_lie_together_costs_one_request(s3_team: Team, proxy: HttpProxy) -> None:
    stocked(s3_team)
    lazy = s3_team.clone("lazy", hydrate="lazy")
    lazy.sync()
    proxy.log.clear()
    assert api.hydrate(lazy.repo, "one").files == 2
    assert [row.method for row in proxy.log.rows()] == ["GET"]
    assert lazy.files == {**METAS, **REST, **{path: data for path, data in RAWS.items() if "/one/" in path}}


def test_what_was_hydrated_follows_the_store_like_any_other_file(team: Team, lazy: Clone) -> None:
    path = "data/t/one/n/1/raw"
    api.hydrate(lazy.repo, path)
    other = team.clone("other")
    other.sync()
    other.write(path, "changed")
    other.write("data/t/two/n/1/raw", "changed too")
    other.sync()
    assert lazy.sync().pulled.files == 1
    assert lazy.files == {**METAS, **REST, path: b"changed"}
    assert api.hydrate(lazy.repo, "data/t/two/n/1/raw").files == 1
    assert lazy.files["data/t/two/n/1/raw"] == b"changed too"


def test_a_hydrated_file_that_is_lost_stays_away_until_it_is_asked_for(lazy: Clone) -> None:
    path = "data/t/one/n/1/raw"
    api.hydrate(lazy.repo, path)
    (lazy.repo.tree_root / path).unlink()
    assert lazy.sync().pulled.files == 0
    assert lazy.status().in_sync
    assert api.hydrate(lazy.repo, path).files == 1


def test_what_is_absent_can_be_deleted_and_written(team: Team, lazy: Clone) -> None:
    lazy.delete("data/t/one/n/1/raw", "data/t/one/n/1/metadata.yaml")
    lazy.write("data/t/two/n/1/raw", "new")
    report = lazy.sync()
    assert (report.pushed.deleted, report.pushed.files, report.conflicts) == (2, 1, [])
    c = team.clone("c")
    c.sync()
    assert c.files.keys() == {*RAWS, *METAS, *REST} - {"data/t/one/n/1/raw", "data/t/one/n/1/metadata.yaml"}
    assert c.files["data/t/two/n/1/raw"] == b"new"


def test_from_full_to_lazy_nothing_is_removed(team: Team) -> None:
    full = stocked(team)
    full.repo.file.write_text(full.repo.file.read_text() + 'hydrate = "lazy"\n')
    full.reopen()
    report = full.sync()
    assert (report.pulled.deleted, report.pushed.deleted, full.files) == (0, 0, {**RAWS, **METAS, **REST})
    assert full.sync().engine == "fast"
