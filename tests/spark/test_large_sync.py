"""A sync on Spark does what one in this process does, in windows, and can be cut short between any two of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.core.deadline import Deadline
from bayou.core.errors import AccessDenied, ConflictRefused, JavaMissing, MassDelete, SparkLost
from bayou.data.sync_hooks import renumber
from bayou.index.entry import Entry
from bayou.index.head import read_head, swap_head
from bayou.index.key_range import KeyRange
from bayou.objectstore.transport import RequestCounter, Verb
from bayou.sync import bulk_pass
from bayou.sync.commit import commit
from bayou.sync.commit import commit as commit_module
from bayou.sync.plan import compare_job
from bayou.sync.report import SyncOptions
from bayou.sync.transfer import apply
from bayou.sync.transfer.executor import DownloadResults, Upload, UploadResults
from bayou.worktree.scan import SkippedPath, scan_range
from tests import api
from tests.cli.conftest import SOURCE, Ran
from tests.spark.scenes import Fate, Scene, copy, outcome
from tests.spark.without_spark import AtOnce, without_spark
from tests.sync.conftest import Clone, Team

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)

PATHS = [
    *(
        f"data/t/m/{name}/{number}/{file}"
        for name in "ab"
        for number in (1, 2, 10)
        for file in ("raw", "metadata.yaml")
    ),
    *("data/t/m/a/1/2/raw", "data/t/m/a/1/x", "outputs/t/m/o.yaml", "logs/l"),
    *(f"files/{at}" for at in range(12)),
]
HERE = ["same", "same", "write", "rewrite", "delete", "lose", "edit", "touch", "undone"]
THERE = ["same", "same", "write", "rewrite", "delete"]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    fates = tuple(
        Fate(path, draw(st.booleans()), draw(st.sampled_from(HERE)), draw(st.sampled_from(THERE))) for path in PATHS
    )
    options: dict[str, Any] = {
        "mode": draw(st.sampled_from(["sync", "sync", "push", "pull"])),
        "on_conflict": draw(st.sampled_from(["keep", "keep", "ours", "theirs"])),
        "adopt": draw(st.booleans()),
        "renumber": draw(st.sampled_from([None, renumber])),
    }
    marked = draw(st.sampled_from([None, None, "", "files", "data/t/m/a"]))
    exclude = draw(st.sampled_from([(), (), ("logs/**",), ("data/t/m/b/**", "files/1*")]))
    return Scene(fates, options, marked, exclude, draw(st.booleans()))


def compare(scene: Scene, root: Path, window: int) -> None:
    """Do the same from the same start in both ways, and find no difference."""
    shutil.rmtree(root, ignore_errors=True)
    start = scene.make(root / "start")
    other = copy(start, root / "copy")

    plans = {engine: start.sync(**scene.options, dry_run=True, engine=engine) for engine in ("spark", "point")}
    here = start.sync(**scene.options, engine="point")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayou.sync.plan.windows.WINDOW", window)
        there = other.sync(**scene.options, engine="spark")

    actions = [sorted(map(str, one.actions)) for one in plans.values()]
    assert actions[0] == actions[1]
    assert (plans["spark"].engine, there.engine) == ("spark", "spark")
    assert outcome(other, there) == outcome(start, here)
    assert there.exit_code == here.exit_code


ANYWHERE = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], database=None
)


@settings(ANYWHERE, max_examples=10)
@given(scenes(), st.sampled_from([1, 3, 20_000]))
def test_windows_and_kernel_do_what_a_small_sync_does(tmp_path, scene: Scene, window: int) -> None:
    with without_spark():
        compare(scene, tmp_path / "scene", window)


@pytest.mark.spark
@settings(ANYWHERE, max_examples=2, derandomize=True)
@given(scenes(), st.sampled_from([3, 20_000]))
def test_both_engines_do_the_same(warm, tmp_path, scene: Scene, window: int) -> None:
    compare(scene, tmp_path / "scene", window)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
@settings(ANYWHERE, max_examples=150)
@given(scenes(), st.sampled_from([1, 3, 20_000]))
def test_both_engines_do_the_same_wherever_they_start(warm, tmp_path, scene: Scene, window: int) -> None:
    compare(scene, tmp_path / "scene", window)


def test_what_will_not_be_here_is_not_downloaded_before_a_delete_is_finished(tmp_path, monkeypatch) -> None:
    """The file is still there that somebody began to delete; once it is gone, a lazy tree wants none in its place."""
    asked: list[str] = []
    expect = AtOnce.expect
    monkeypatch.setattr(
        AtOnce, "expect", lambda self, some: (asked.extend(one.path for one in some), expect(self, some))
    )
    options = {"mode": "pull", "on_conflict": "keep", "adopt": False, "renumber": None}
    scene = Scene((Fate("data/t/m/a/1/raw", True, "undone", "rewrite"),), options, None, (), lazy=True)

    with without_spark():
        compare(scene, tmp_path / "scene", 1)

    assert asked == []


def units(count: int, size: int = 50) -> dict[str, bytes]:
    """Versions of two files each."""
    return {f"data/t/m/n{at}/1/{name}": b"%d" % at * size for at in range(count) for name in ("raw", "metadata.yaml")}


def packed_times(team: Team) -> Counter[str]:
    """Return how many packs of a store in a directory have each path."""
    packs = Path(team.url.removeprefix("file://")).glob(".bayou/packs/*.zip")
    return Counter(path for pack in packs for path in zipfile.ZipFile(pack).namelist())


def commits(team: Team) -> int:
    seen = read_head(team.store())
    assert seen is not None
    return seen.head.seq


def test_a_sync_in_windows_commits_each_and_ends_as_one_that_is_in_sync(team: Team, monkeypatch) -> None:
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 7)
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(20))
    with without_spark():
        pushed = here.push(engine="spark")
        pulled = there.pull(engine="spark")

    assert (pushed.pushed.files, pulled.pulled.files, pushed.engine, pulled.engine) == (40, 40, "spark", "spark")
    assert commits(team) == 1 + 6  # the first head, and windows of two and then eight files, since no version is cut
    assert there.files == here.files == units(20)
    for clone in (here, there):
        assert (clone.status().in_sync, clone.sync().engine) == (True, "fast")


class Watched(AtOnce):
    """Tells what is on its way, and what was ended before anybody had asked for all of it."""

    told: ClassVar[list[str]]

    def upload(self, uploads: Iterable[Upload], count: int, packed: Iterable[Upload] = ()) -> UploadResults:
        number = sum(line.startswith("sent") for line in self.told) + 1
        sending = self._listen(number, list(super().upload(uploads, count, packed)))
        next(sending)
        self.told.append(f"sent {number}")
        return sending

    def expect(self, entries: Sequence[Entry]) -> None:
        super().expect(entries)
        self.told.append(f"expected {len(entries)}")

    def download(self, entries: Iterable[Entry], count: int) -> DownloadResults:
        yield from super().download(entries, count)
        if count:
            self.told.append(f"took {count}")

    def _listen(self, number: int, done: list[Any]) -> Any:
        try:
            yield None
            yield from done
        except GeneratorExit:
            self.told.append(f"ended {number}")
            raise


@pytest.fixture
def watched(monkeypatch) -> list[str]:
    """Watch windows of eight files, and what they commit, in a sync that runs `without_spark`."""
    told: list[str] = []
    Watched.told = told
    commit = commit_module.commit

    def committed(*args: Any, **kwargs: Any) -> Any:
        done = commit(*args, **kwargs)
        told.append(f"committed {sum(line.startswith('committed') for line in told) + 1}")
        return done

    monkeypatch.setattr("tests.spark.without_spark.AtOnce", Watched)
    monkeypatch.setattr(commit_module, "commit", committed)
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 7)
    return told


def test_what_the_next_window_sends_is_on_its_way_while_one_is_committed(team: Team, watched: list[str]) -> None:
    here = team.clone("here")
    here.write_all(units(12))
    with without_spark():
        here.push(engine="spark")

    # The first is a small one, so that something is on its way soon.
    told = "sent 1, sent 2, committed 1, sent 3, committed 2, sent 4, committed 3, committed 4"
    assert ", ".join(watched) == told


def test_what_one_commit_can_carry_is_one(team: Team, watched: list[str]) -> None:
    here = team.clone("here")
    here.write_all(units(3))
    with without_spark():
        here.push(engine="spark")

    assert watched == ["sent 1", "committed 1"]


def test_what_the_next_window_brings_is_on_its_way_while_one_is_put_in_place(team: Team, watched: list[str]) -> None:
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(12))
    here.push()
    watched.clear()
    with without_spark():
        there.pull(engine="spark")

    # The first is a small one, so that something is on its way soon.
    told = "expected 2, expected 8, took 2, expected 8, took 8, expected 6, took 8, took 6"
    assert ", ".join(watched) == told
    assert there.files == here.files


@pytest.mark.parametrize("packs", [False, True])
def test_v19_what_is_on_its_way_ends_with_a_commit_that_fails_and_is_not_sent_again(
    team: Team, watched: list[str], monkeypatch, packs
) -> None:
    if not packs:
        monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(12))
    swap = swap_head

    def refused(*args: Any) -> Any:
        if "committed 1" in watched:
            raise AccessDenied("no")
        return swap(*args)

    with monkeypatch.context() as patch:
        patch.setattr(commit, "swap_head", refused)
        with without_spark(), pytest.raises(AccessDenied):
            here.push(engine="spark")
    assert (watched[-1], commits(team)) == ("ended 3", 1 + 1)

    again = here.sync(engine="point")
    there.sync(engine="point")
    # The second window's uploads are recorded. Of the third nobody was told: it goes to the same keys again, or into
    # another pack (P1). The fourth had not begun.
    assert (again.pushed.files, again.pushed.bytes) == (
        22,
        sum(len(content) for _, content in sorted(units(12).items())[-22:]),
    )
    copies = [packed_times(team)[path] for path, _ in sorted(units(12).items())]
    assert copies == ([1] * 2 + [1] * 8 + [2] * 8 + [1] * 6 if packs else [0] * 24)
    assert again.requests.put == 3 if packs else 14 < again.requests.put < 22
    assert there.files == here.files == units(12)


def test_a_peer_that_commits_between_two_windows_is_merged_with_both(
    team: Team, watched: list[str], monkeypatch
) -> None:
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(12))
    theirs = {"data/t/m/n3/1/raw": b"theirs", "data/t/m/n3/1/metadata.yaml": b"theirs too", "files/theirs": b"x"}
    finish = apply.finish

    def overtaken(*args: Any) -> Any:
        if len(watched) == 2:
            there.write_all(theirs)
            there.push(engine="point")
        return finish(*args)

    monkeypatch.setattr(bulk_pass, "finish", overtaken)
    with without_spark():
        met = here.sync(engine="spark")
    there.sync(engine="point")

    assert met.exit_code == 3
    assert {one.path for one in met.conflicts} == theirs.keys() - {"files/theirs"}
    assert here.files == there.files == {**units(12), **theirs}


def test_v17_what_tasks_ask_the_store_for_while_they_compare_is_counted_too(team: Team, monkeypatch) -> None:
    sent = Counter[str]()
    count = RequestCounter.sent

    def counting(self: RequestCounter, verb: Verb, requests: int = 1, **moved: int) -> None:
        sent[verb] += requests
        count(self, verb, requests, **moved)

    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(20))
    here.push()
    monkeypatch.setattr(RequestCounter, "sent", counting)
    with without_spark():
        requests = there.pull(engine="spark").requests

    assert requests.get == 3  # the head, a leaf and a pack
    assert (requests.get, requests.put, requests.head, requests.list, requests.delete) == tuple(
        sent[verb] for verb in ("get", "put", "head", "list", "delete")
    )


KILLED = """
import os, signal, sys
from tests.cli.conftest import Ran
from tests.spark.without_spark import AtOnce, without_spark
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync import bulk_pass
from bayou.sync.plan import windows
from bayou.sync.report import SyncOptions

windows.WINDOW, left, real = 7, [2], bulk_pass.begin

def dying(*args, **kwargs):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

bulk_pass.begin = dying
with without_spark():
    sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode=sys.argv[2], engine="spark"))
"""


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_v19_who_is_killed_between_two_windows_goes_on_with_a_plain_sync(team: Team, processes, mode) -> None:
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(20))
    clone = here
    if mode == "pull":
        here.push(engine="point")
        clone = there

    died = processes.finish(
        processes.script(KILLED, str(clone.repo.root), mode, PYTHONPATH=f"{SOURCE}{os.pathsep}{ROOT}")
    )

    assert died.code == -signal.SIGKILL, died.err
    # Two windows have begun; what the second sends was on its way. The first of a pull is a small one.
    assert (len(there.files) == 2 + 8) if mode == "pull" else (commits(team) == 1 + 1)
    assert (clone.repo.state / "large").exists()
    clone.sync(engine="point")
    assert not (clone.repo.state / "large").exists()
    there.sync(engine="point")
    assert there.files == here.files == units(20)
    assert (here.status().in_sync, there.status().in_sync) == (True, True)


def test_f033_too_many_deletes_are_noticed_before_the_first_window(team: Team, monkeypatch) -> None:
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 20)
    here, there = team.clone("here"), team.clone("there")
    files = {f"files/{at}": b"x" for at in range(260)}
    here.write_all(files)
    here.push(engine="point")
    there.pull(engine="point")
    here.delete(*list(files)[:230])
    before = commits(team)
    with without_spark():
        with pytest.raises(MassDelete, match="230 of 260 entries in the store; nothing was changed"):
            here.sync(engine="spark")
        assert (commits(team), len(there.files)) == (before, 260)
        allowed = here.sync(engine="spark", allow_mass_delete=True)
        # Every commit that deletes says that this was allowed, so the peer follows, also in windows.
        followed = there.pull(engine="spark")

    assert (allowed.pushed.deleted, followed.pulled.deleted, len(there.files)) == (230, 230, 30)
    assert there.status().in_sync


def test_a_conflict_that_is_to_fail_does_so_before_the_first_window(team: Team, monkeypatch) -> None:
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 3)
    here, there = team.clone("here"), team.clone("there")
    here.write_all(units(10))
    here.write("outputs/z", "ours")
    there.write("outputs/z", "theirs")
    there.push(engine="point")
    before = here.files
    with without_spark(), pytest.raises(ConflictRefused, match="outputs/z; nothing was changed"):
        here.sync(engine="spark", on_conflict="fail")

    assert (here.files, commits(team)) == (before, 2)
    with without_spark():
        kept = here.sync(engine="spark")
    assert ([one.path for one in kept.conflicts], kept.pushed.files) == (["outputs/z"], 20)


def test_what_changes_after_the_comparison_is_never_pushed_half_nor_overwritten(team: Team, monkeypatch) -> None:
    here, there = team.clone("here"), team.clone("there")
    there.write_all({"files/come": b"theirs", "files/go": b"old"})
    there.push(engine="point")
    here.pull(engine="point")
    there.write_all({"files/come": b"theirs, newer", "files/new": b"new"})
    there.push(engine="point")
    here.write("files/go", "first")

    def late(*args: Any) -> Any:
        found = compare_job.compare(*args)
        if not changed:
            changed.append(True)
            here.write("files/go", "second")
            here.write("files/come", "ours, meanwhile")
            there.write("files/last", "at the last moment")
            there.push(engine="point")
        return found

    changed: list[bool] = []
    with without_spark():
        monkeypatch.setattr(bulk_pass, "compare", late)
        report = here.sync(engine="spark")

    there.sync(engine="point")
    assert there.files == here.files
    assert here.files["files/go"] == b"second"
    assert here.files["files/come"] == b"theirs, newer"
    assert here.files["files/last"] == b"at the last moment"
    (kept,) = report.conflicts
    assert (kept.path, Path(kept.copy or "").read_bytes()) == ("files/come", b"ours, meanwhile")


@pytest.mark.spark
@pytest.mark.s3
def test_the_command_line_syncs_on_spark(warm, s3_team: Team, processes) -> None:
    here, there = s3_team.clone("here"), s3_team.clone("there")
    for path, content in {**units(30), "files/large": os.urandom(20 << 20)}.items():
        here.lay(path, content)

    def sync(clone: Clone, *args: str) -> Ran:
        told = ["--repo", str(clone.repo.root), "datastore", "sync", "--engine", "spark", "--json", *args]
        process = processes.start(["-m", "bayou", *told])
        out, err = process.communicate(timeout=280)
        return Ran(process.returncode, out, err)

    dry = sync(here, "--adopt", "--dry-run")
    assert (dry.code, dry.document["engine"], len(dry.document["actions"])) == (0, "spark", 61), dry.err
    up = sync(here, "--adopt", "--push")
    assert (up.code, up.document["engine"], up.document["pushed"]["files"]) == (0, "spark", 61), up.err
    down = sync(there, "--pull")
    assert (down.code, down.document["engine"], down.document["pulled"]["files"]) == (0, "spark", 61), down.err
    assert there.files == here.files
    there.write("files/large", "ours")
    here.write("files/large", "theirs")
    here.push(engine="point")
    both = sync(there)
    assert (both.code, both.document["engine"], len(both.document["conflicts"])) == (3, "spark", 1), both.err
    assert there.files == here.files
    assert not list(there.repo.state.glob("large*"))


def limited(team: Team, name: str, limit: int = 20) -> Clone:
    """A clone that leaves more than so many paths to Spark."""
    clone = team.clone(name)
    with open(clone.repo.file, "a") as file:
        file.write(f"[sync]\npoint_limit = {limit}\n")
    clone.reopen()
    return clone


@pytest.mark.parametrize(("count", "engine"), [(10, "point"), (11, "spark")])
def test_what_is_more_than_the_limit_goes_to_spark_in_both_directions(team: Team, count: int, engine: str) -> None:
    here, there = limited(team, "here"), limited(team, "there")
    with without_spark():
        here.write_all(units(count))
        assert here.push(walk=False).engine == engine
        for path, content in units(count, 60).items():
            here.lay(path, content)
        assert here.push().engine == engine
        assert there.pull().engine == engine
        here.write_all(units(count, 70))
        here.push()
        assert there.pull(walk=False).engine == engine

    assert there.files == here.files


def test_without_spark_this_process_does_it_alone_and_says_so(team: Team, monkeypatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java")

    monkeypatch.setattr("bayou.spark.session.open_session", missing)
    here = limited(team, "here")
    here.write_all(units(20))

    report = here.push()

    assert (report.engine, report.pushed.files) == ("point", 40)
    assert report.warnings == [
        "tree and store were compared by this process alone, since Spark could not: there is no Java"
    ]
    with pytest.raises(JavaMissing):
        here.push(engine="spark")


def test_a_server_that_goes_away_between_two_windows_leaves_the_rest_to_this_process(team: Team, monkeypatch) -> None:
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 7)
    here = limited(team, "here")
    here.write_all(units(20))
    real, left = apply.begin, [2]

    def gone(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise SparkLost("the Spark server went away")
        return real(*args, **kwargs)

    monkeypatch.setattr(bulk_pass, "begin", gone)
    with without_spark():
        report = here.push()

    assert (report.pushed.files, len(report.warnings)) == (40, 1)
    assert commits(team) >= 1 + 1 + 5  # this process goes on in windows, too
    assert here.status().in_sync


def test_a_base_that_is_damaged_is_forgotten_and_everything_compared_anew(team: Team) -> None:
    here, there = team.clone("here"), team.clone("there")
    there.write("files/theirs", "theirs")
    there.push(engine="point")
    here.write_all(units(10))
    here.push(engine="point")  # base is no root of the store's: nobody else has its nodes
    for node in (here.repo.state / "nodes").iterdir():
        node.unlink()
    here.write("files/new", "new")
    with without_spark():
        report = here.sync(engine="spark")

    assert (report.pushed.files, report.engine, here.status().in_sync) == (1, "spark", True)
    assert any("tree and store were compared anew" in text for text in report.warnings)


def test_v5_what_lies_in_a_directory_that_cannot_be_read_is_not_missing(team: Team, monkeypatch) -> None:
    here, there = team.clone("here"), team.clone("there")
    here.write_all({"files/shut/1": b"1", "files/shut/2": b"2", "files/open": b"3"})
    here.push(engine="point")
    here.delete("files/shut/2")
    (here.repo.tree_root / "files/open").unlink()

    def half_blind(root: Path, within: KeyRange, skipped: list[SkippedPath], temporaries: list[str]) -> Any:
        found = scan_range(root, within, skipped, temporaries)
        yield from (one for one in found if not one.path.startswith("files/shut/"))
        skipped.append(SkippedPath("files/shut", "permission denied", "unreadable"))

    monkeypatch.setattr("bayou.sync.plan.compare_job.scan_range", half_blind)
    with without_spark():
        report = here.sync(engine="spark")

    assert [(one.path, one.code) for one in report.failed] == [("files/shut", "unreadable")]
    # One is lost and pulled back, one was deleted by somebody who said so, and nothing is known of the third.
    assert (report.pulled.files, report.pushed.deleted, report.exit_code) == (1, 1, 1)
    there.pull(engine="point")
    assert there.files == {"files/shut/1": b"1", "files/open": b"3"}


def test_what_killed_writers_left_in_the_tree_is_swept_by_a_large_sync_too(team: Team) -> None:
    here = team.clone("here")
    here.write("files/a", "a")
    old = here.repo.tree_root / "files/.bayou-01AN4Z07BYTAK0TAVV6YB2Q1WZ.tmp"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    with without_spark():
        here.sync(engine="spark")

    assert here.files == {"files/a": b"a"}


@pytest.mark.parametrize("policy", [{"hydrate": "lazy"}, {"exclude": ["data/t/m/n1/**"]}])
def test_f015_what_was_left_out_comes_when_the_policy_changes(team: Team, policy: dict[str, Any]) -> None:
    here, there = team.clone("here"), team.clone("there", **policy)
    here.write_all(units(5))
    here.push(engine="point")
    with without_spark():
        there.pull(engine="spark")
        assert 0 < len(there.files) < 10
        assert there.status().in_sync
        there.repo.file.write_text(there.repo.file.read_text().replace('"lazy"', '"full"').replace("n1/**", "nothing"))
        there.reopen()
        report = there.pull(engine="spark")

    assert there.files == here.files
    assert (report.engine, there.status().in_sync) == ("spark", True)


def test_files_that_are_known_to_be_untracked_do_not_make_a_sync_large(team: Team) -> None:
    here = limited(team, "here")
    here.write("files/a", "a")
    here.push()
    for path, content in units(20).items():
        here.lay(path, content)
    with without_spark():
        first, second = here.sync(), here.sync()
        here.write("files/b", "b")
        third = here.sync()

    assert [len(one.untracked) for one in (first, second, third)] == [40, 40, 40]
    assert [one.engine for one in (first, second, third)] == ["spark", "fast", "point"]
    assert third.pushed.files == 1


def test_all_windows_are_one_stage_of_which_everybody_knows_how_much_it_is(team: Team, monkeypatch) -> None:
    monkeypatch.setattr("bayou.sync.plan.windows.WINDOW", 7)
    here = team.clone("here")
    here.write_all(units(20))
    here.delete("data/t/m/n0/1/raw", "data/t/m/n0/1/metadata.yaml")
    told: list[tuple[Any, ...]] = []

    class Watching:
        begin = staticmethod(lambda *args: told.append(("begin", *args)))
        advance = staticmethod(lambda files=0, bytes=0: told.append(("done", files, bytes)))  # noqa: A006
        skip = staticmethod(lambda bytes: None)  # noqa: A006
        share = staticmethod(lambda done: None)
        end = staticmethod(lambda: told.append(("end",)))

    with without_spark():
        api.sync(here.repo, SyncOptions(mode="push", engine="spark"), progress=Watching())

    size = sum(map(len, here.files.values()))
    begun = told.index(("begin", "pushing", 38, size))
    assert not [one for one in told[:begun] if one[0] == "begin" and one[1] != "listing"]
    assert [one for one in told[begun + 1 :] if one[0] != "done"] == [("end",)]
    done = [one[1:] for one in told[begun:] if one[0] == "done"]
    assert [sum(column) for column in zip(*done, strict=True)] == [38, size]


@pytest.mark.spark
def test_ctrl_c_cancels_the_job_and_leaves_nothing_half_committed(warm, team: Team, processes) -> None:
    here = team.clone("here")
    for path, content in units(50).items():
        here.lay(path, content)
    told = ["--repo", str(here.repo.root), "datastore", "sync", "--push", "--adopt", "--engine", "spark", "--json"]
    process = processes.start(["-m", "bayou", *told])
    deadline = Deadline.after(250)
    while not (here.repo.state / "large").exists():
        assert process.poll() is None
        deadline.sleep(0.01)

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=250)

    assert (process.returncode, json.loads(said)["error"]["code"]) == (130, "cancelled")
    assert not (here.repo.state / "large").exists()
    assert commits(team) == 1  # that there is a store
    assert here.push(engine="point", adopt=True).pushed.files == 100
    assert here.status().in_sync
