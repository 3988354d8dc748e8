"""`datastore setup`, clause by clause: probe, head, copy, push, hydrate, configuration, removal, in this order."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import bayou.maintenance.setup as setup_code
from bayou.config.write import write_datastore
from bayou.core.errors import AccessDenied, HeadLost, NoSuchBucket, StoreEmptied, SyncError, TreeError, UsageError
from bayou.objectstore import keys
from bayou.objectstore.keys import as_listed
from bayou_testing.faulty import Fault
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import entries_of
from tests.sync.test_failures_paths import commoner

FILES = {"data/t/m/n/1/raw": b"raw", "files/x": b"x"}
TEXTS = {path: content.decode() for path, content in FILES.items()}


def on_directory(team: Team, name: str) -> Clone:
    """A repo whose datastore is a directory, with some files in it."""
    clone = newcomer(team, name)
    set_up(clone, team.root / f"directory of {name}")
    clone.write_all(FILES)
    return clone


def own_tree(clone: Clone) -> dict[str, str]:
    """What lies in the repo's own tree, whatever its configuration says."""
    root = clone.repo.root / ".bayou/tree"
    return {file.relative_to(root).as_posix(): file.read_text() for file in root.rglob("*") if file.is_file()}


def test_configuration_switches_when_everything_is_in_place(
    team: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = team.clone("other")
    other.write("files/theirs", "theirs")
    other.sync()
    a = newcomer(team, "a", TEXTS)
    real = write_datastore
    complete: list[bool] = []

    def switching(*args: Any, **more: Any) -> None:
        everything = {*FILES, "files/theirs"}
        complete.append(entries_of(team.store()).keys() == a.files.keys() == everything)
        real(*args, **more)
        wire.seen.clear()

    monkeypatch.setattr(setup_code, "write_datastore", switching)
    set_up(a, team)
    assert complete == [True]
    assert wire.seen == []  # nothing is asked of the store after the switch


@pytest.mark.usefixtures("loose_objects")
def test_the_store_is_proved_then_gets_its_head_and_then_objects(team: Team, wire: Wire) -> None:
    set_up(newcomer(team, "a", TEXTS), team)
    writes = [one.key for one in wire.seen if one.verb in ("put", "delete")]
    stages = [
        "probe" if "/probe/" in key else "head" if "head.json" in key else "object" if "~" in key else "node"
        for key in writes
    ]
    order = list(dict.fromkeys(stages))
    assert order == ["probe", "head", "object", "node"]
    assert stages.count("head") == 2
    assert stages.count("object") == 2


def test_a_store_that_cannot_be_written_is_refused_with_nothing_changed(team: Team, wire: Wire) -> None:
    wire.cut(Fault("put", error=lambda: AccessDenied("403")))
    a = newcomer(team, "a", TEXTS)
    config = a.repo.file.read_text()
    with pytest.raises(AccessDenied, match="write objects"):
        set_up(a, team)
    assert (a.repo.file.read_text(), a.files) == (config, FILES)


def test_a_store_that_cannot_be_reached_is_refused_with_nothing_changed(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    config = a.repo.file.read_text()
    with pytest.raises(NoSuchBucket):
        set_up(a, f"{team.url}/not/mounted")
    assert (a.repo.file.read_text(), a.files) == (config, FILES)


def test_from_a_directory_everything_is_copied_and_the_directory_left(team: Team) -> None:
    a = on_directory(team, "a")
    old = a.repo.tree_root
    report = set_up(a, team)
    assert (report.migrated, report.pushed, a.files) == (2, 2, FILES)
    assert a.repo.tree_root == a.repo.root / ".bayou/tree"
    assert (old / "files/x").read_bytes() == b"x"
    assert any(str(old) in warning for warning in report.warnings)
    assert entries_of(team.store()).keys() == FILES.keys()


def test_what_an_old_cache_still_holds_never_beats_the_directory_that_was_in_use(team: Team) -> None:
    a = on_directory(team, "a")
    stale = {"files/x": "stale", "files/deleted long ago": "stale", "data/t/m/n/1/extra": "stale"}
    for path, content in stale.items():
        (a.repo.root / ".bayou/tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (a.repo.root / ".bayou/tree" / path).write_text(content)
    report = set_up(a, team)
    kept = {one.path: Path(one.copy or "").read_text() for one in report.conflicts}
    assert kept == {"files/x": "stale", "data/t/m/n/1/extra": "stale"}
    assert entries_of(team.store()).keys() == FILES.keys()
    assert a.sync().untracked == ["files/deleted long ago"]


@pytest.mark.usefixtures("loose_objects")
def test_a_migration_from_a_directory_that_fails_leaves_no_copies(team: Team, wire: Wire) -> None:
    a = on_directory(team, "a")
    config = a.repo.file.read_text()
    wire.cut(Fault("put", "/x$", error=lambda: AccessDenied("403")))
    with pytest.raises(SyncError, match="files/x"):
        set_up(a, team)
    assert (a.repo.file.read_text(), a.files, own_tree(a)) == (config, FILES, {})
    wire.cut()
    a.delete("files/x")
    set_up(a, team)
    assert entries_of(team.store()).keys() == {"data/t/m/n/1/raw"}


def test_from_store_to_store_what_was_never_pushed_goes_along(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, f"{team.url}-one")
    a.write("files/x", "changed since")
    a.write("files/new", "new")
    a.delete("data/t/m/n/1/raw")
    report = set_up(a, f"{team.url}-two")
    assert (report.pushed, report.migrated) == (2, 2)
    there = Team(team.root, f"{team.url}-two", {}).clone("there")
    there.sync()
    assert there.files == a.files == {"files/x": b"changed since", "files/new": b"new"}


def test_from_lazy_store_to_store_everything_is_fetched_first(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, f"{team.url}-one")
    lazy = newcomer(team, "lazy")
    joined = set_up(lazy, f"{team.url}-one", lazy=True)
    assert (joined.pulled, lazy.repo.config.datastore.hydrate) == (1, "lazy")
    set_up(lazy, f"{team.url}-two")
    assert entries_of(Team(team.root, f"{team.url}-two", {}).store()).keys() == FILES.keys()


def test_back_to_the_repos_own_tree(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, team)
    lazy = newcomer(team, "lazy")
    set_up(lazy, team, lazy=True)
    set_up(lazy, lazy.repo.root / ".bayou/tree")
    place = lazy.repo.config.datastore
    assert (place.url, place.path, lazy.files) == (None, None, FILES)


def test_from_local_to_a_directory_the_old_copies_are_removed(team: Team) -> None:
    a = newcomer(team, "a", {**TEXTS, "not payload": "stays"})
    os.utime(a.repo.tree_root / "files/x", (1000, 1000))
    report = set_up(a, team.root / "directory")
    assert (report.migrated, a.files) == (2, FILES)
    assert own_tree(a) == {"not payload": "stays"}
    assert (a.repo.tree_root / "files/x").stat().st_mtime == 1000


def test_without_migration_nothing_is_taken_along(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    report = set_up(a, team.root / "directory", skip_migration=True)
    assert (report.migrated, a.files, own_tree(a)) == (0, {}, TEXTS)


@pytest.mark.parametrize("target", ["a file", "inside .bayou", "no parent"])
def test_a_directory_that_cannot_be_one_is_refused(team: Team, target: str) -> None:
    a = newcomer(team, "a", TEXTS)
    config = a.repo.file.read_text()
    (team.root / "file").write_text("in the way")
    place = {"a file": "file", "inside .bayou": "a/.bayou/tree/data", "no parent": "no/such/parent"}[target]
    with pytest.raises((UsageError, TreeError)):
        set_up(a, team.root / place)
    assert (a.repo.file.read_text(), a.files) == (config, FILES)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (".bayou", "lies in .bayou/ of this repo"),
        (".bayou/conflicts", "lies in .bayou/ of this repo"),
        ("models", "lies in models/ of this repo"),
        ("workflows/data", "lies in workflows/ of this repo"),
        ("link/data", "lies in models/ of this repo"),
    ],
)
def test_a_directory_that_mixes_data_with_the_repo_is_refused(team: Team, place: str, said: str) -> None:
    a = newcomer(team, "a", TEXTS)
    config = a.repo.file.read_text()
    (a.repo.root / "link").symlink_to(a.repo.root / "models")
    with pytest.raises(UsageError, match=said) as caught:
        set_up(a, a.repo.root / place)
    assert "choose a directory of its own" in str(caught.value.hint)
    assert (a.repo.file.read_text(), a.files) == (config, FILES)


@pytest.mark.parametrize("place", [".bayou/tree", "shared", "models-data"])
def test_a_directory_of_its_own_in_the_repo_is_accepted(team: Team, place: str) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, a.repo.root / place)
    assert (a.repo.tree_root, a.files) == (a.repo.root / place, FILES)


def test_a_directory_that_contains_the_repo_is_accepted(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, a.repo.root)
    assert a.repo.tree_root == a.repo.root
    assert FILES.items() <= a.files.items()


@pytest.mark.parametrize("into", ["store", "directory"])
def test_what_cannot_be_read_is_not_left_behind(into: str) -> None:
    with commoner() as root:
        (root / "store").mkdir()
        team = Team(root, (root / "store").as_uri(), {})
        a = newcomer(team, "a", {"files/closed/x": "x", "files/y": "y"})
        config = a.repo.file.read_text()
        (a.repo.tree_root / "files/closed").chmod(0)
        with pytest.raises(TreeError, match="files/closed"):
            set_up(a, team if into == "store" else root / "directory")
        assert a.repo.file.read_text() == config
        (a.repo.tree_root / "files/closed").chmod(0o755)
        assert set_up(a, team if into == "store" else root / "directory").migrated == 2


def test_a_link_at_the_new_place_leads_nowhere(team: Team) -> None:
    target = team.root / "directory"
    (target / "files").mkdir(parents=True)
    (team.root / "outside").mkdir()
    (target / "files/d").symlink_to(team.root / "outside")
    a = newcomer(team, "a", {"files/d/x": "x"})
    config = a.repo.file.read_text()
    with pytest.raises(Exception, match="symbolic link"):
        set_up(a, target)
    assert (a.repo.file.read_text(), os.listdir(team.root / "outside")) == (config, [])


def test_a_store_that_was_emptied_is_joined_anew_and_filled(team: Team) -> None:
    a = newcomer(team, "a", TEXTS)
    set_up(a, team)
    shutil.rmtree(team.root / "store")
    (team.root / "store").mkdir()
    with pytest.raises(StoreEmptied) as told:
        a.sync()
    assert "bayou datastore setup" in (told.value.hint or "")
    report = set_up(a, team)
    assert (report.pushed, report.migrated, report.conflicts) == (2, 2, [])
    assert entries_of(team.store()).keys() == FILES.keys()
    assert a.sync().engine == "fast"


def test_the_command_that_joins_anew_names_the_namespace_and_the_options_of_this_store(s3_team: Team) -> None:
    a = newcomer(s3_team, "a", TEXTS)
    set_up(a, s3_team, namespace="ns")
    s3_team.store("ns").delete([keys.HEAD])
    with pytest.raises(StoreEmptied) as told:
        a.sync()
    words = shlex.split((told.value.hint or "").partition("join it anew: ")[2])
    options = [word for pair in sorted(s3_team.options.items()) for word in ("--option", "=".join(pair))]
    assert words == ["bayou", "datastore", "setup", s3_team.url, "--namespace", "ns", *options]
    assert options


def test_a_log_of_a_store_that_lost_its_head_is_an_error_and_not_empty(team: Team) -> None:
    a, joined, stranger = newcomer(team, "a", TEXTS), team.clone("joined"), team.clone("stranger")
    set_up(a, team)
    joined.pull()
    team.store().delete([keys.HEAD])
    with pytest.raises(StoreEmptied):
        api.log(joined.repo, 10)
    with pytest.raises(HeadLost):
        api.log(stranger.repo, 10)


def test_a_deadline_that_passes_in_setup_names_the_time_that_the_user_gave(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = newcomer(team, "a", TEXTS)
    monkeypatch.setattr(setup_code, "run", lambda context: replace(context.deadline, at=0.0).remaining())
    assert set_up(a, team, timeout=1000.0).unfinished == "not finished after 1000 s"


@pytest.mark.parametrize("to", ["store", "directory"])
def test_a_directory_that_is_not_mounted_is_not_an_empty_one(team: Team, to: str) -> None:
    a = on_directory(team, "a")
    config, away = a.repo.file.read_text(), team.root / "unmounted"
    a.repo.tree_root.rename(away)
    with pytest.raises(UsageError, match="whose data is to be brought along") as told:
        set_up(a, team if to == "store" else team.root / "another")
    assert "--skip-migration" in (told.value.hint or "")
    assert a.repo.file.read_text() == config
    away.rename(a.repo.tree_root)
    assert set_up(a, team if to == "store" else team.root / "another").migrated == len(FILES)


@pytest.mark.parametrize("inside", ["", ".bayou", ".bayou/tree", ".bayou/state/store"])
def test_a_store_among_the_state_of_its_own_repo_is_refused(team: Team, inside: str) -> None:
    a = newcomer(team, "a", TEXTS)
    config = a.repo.file.read_text()
    with pytest.raises(UsageError, match="holds the local state of this repo"):
        api.setup(
            a.repo,
            f"file://{a.repo.root / inside}",
            namespace=None,
            options={},
            lazy=False,
            skip_migration=False,
            timeout=None,
        )
    assert (a.repo.file.read_text(), own_tree(a)) == (config, TEXTS)


@pytest.mark.usefixtures("loose_objects")
def test_a_store_with_a_missing_object_can_be_joined_and_says_so(team: Team) -> None:
    other = team.clone("other")
    other.write_all(FILES)
    other.sync()
    team.store().delete([as_listed(key) for key in team.payload_keys() if key.endswith("/raw")])
    a = newcomer(team, "a", {"files/own": "own"})
    report = set_up(a, team)
    assert any("data/t/m/n/1/raw" in warning for warning in report.warnings)
    assert a.files == {"files/own": b"own", "files/x": b"x"}
    assert api.verify(a.repo, deep=False, repair=False).missing == ["data/t/m/n/1/raw"]
