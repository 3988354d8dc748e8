"""Many processes at once: every version is kept, nothing is half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from bayou.core.ids import ulid
from bayou.data.records import Records
from bayou.repo import Repo, init_repo, open_repo
from tests.data.models import MODEL, in_tree, leftovers, visible
from tests.sync.conftest import Team
from tests.trusting import trust


def _together(repo: Repo, *work: str) -> list[list[int]]:
    """Run one process for each piece of work (`forks.py`); all begin at once. Return what each has to tell."""
    done = _start("together", repo.root, *work)
    out, errors = done.communicate(timeout=100)
    assert done.returncode == 0, errors.decode()
    return [json.loads(line) for line in out.splitlines()]


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.data.forks", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ten_processes_that_save_one_name_make_ten_versions_all_kept(repo: Repo) -> None:
    made = _together(repo, *["save"] * 10)
    assert sorted(number for numbers in made for number in numbers) == list(range(1, 21))
    with Records(repo) as records:
        seen = visible(records)
        assert {seen["main", "x", number] for number in range(1, 21)} == {
            f"{who} {number}".encode() for who in range(10) for number in range(2)
        }
        for who, numbers in enumerate(made):
            assert [seen["main", "x", number] for number in numbers] == [b"%d 0" % who, b"%d 1" % who]
        assert len({one.id for one in in_tree(records.tree.root).values()}) == 1
    assert leftovers(repo.tree_root) == []


def test_threads_of_one_process_share_the_records(repo: Repo) -> None:
    with Records(repo) as records, ThreadPoolExecutor(8) as pool:
        records.data.save(MODEL, "log", b"", streaming=True)
        saves = [pool.submit(records.data.save, MODEL, "x", b"%d" % number) for number in range(16)]
        appends = [pool.submit(records.data.append, MODEL, "log", b"x") for _ in range(8)]
        assert sorted(one.result().version for one in saves) == list(range(1, 17))
        assert sorted(one.result().size for one in appends) == list(range(1, 9))
        assert records.data.read(records.data.get(MODEL, "log")) == b"x" * 8
        assert len(records.data.find(all_versions=True)) == 17


def test_f128_descriptors_do_not_pile_up(repo: Repo) -> None:
    def work() -> int:
        with Records(repo) as records:
            records.data.save(MODEL, "x", b"1")
            records.data.read(records.data.get(MODEL, "x"))
            records.data.find()
            records.data.delete(MODEL, "x")
            with records.data.allocate(MODEL, "x"):
                pass
        return len(os.listdir("/proc/self/fd"))

    first = work()
    assert [work() for _ in range(20)][-1] == first


def test_two_repos_on_one_directory_share_its_numbers(directory_repo: Repo) -> None:
    other = init_repo(directory_repo.root.parent / "other")
    other.file.write_text(other.file.read_text() + f'path = "{directory_repo.tree_root}"\n')
    trust(other.root)
    other = open_repo(other.root)
    with Records(directory_repo) as one, Records(other) as two:
        for number in range(1, 4):
            assert one.data.save(MODEL, "x", b"one").version == 2 * number - 1
            assert two.data.save(MODEL, "x", b"two").version == 2 * number
        assert visible(one) == visible(two)
        assert len(visible(one)) == 6


def test_readers_see_all_of_what_is_published_together_or_nothing_of_it(repo: Repo) -> None:
    child = _start("together", repo.root, "publish_all")
    looks = 0
    with Records(repo) as records:
        while child.poll() is None:
            seen = {row.name: row.version for row in records.data.find()}
            assert set(seen) in (set(), {"a", "b", "c"})
            assert len(set(seen.values())) < 2, seen
            if seen:
                assert records.data.get(MODEL, "a").metadata.version <= records.data.get(MODEL, "b").metadata.version
                looks += 1
            if looks == 5:
                (repo.root / "seen").touch()
        last = {row.version for row in records.data.find()}
    assert child.returncode == 0, child.communicate()
    assert len(last) == 1
    assert last.pop() >= 12


def test_f039_a_put_that_meets_a_delete_is_no_error_and_leaves_no_shell(repo: Repo) -> None:
    saved, _ = _together(repo, "put", "delete")
    assert saved == sorted(set(saved))  # every number once
    with Records(repo) as records:
        for (_, _, number), content in visible(records).items():
            assert content == b"0 %d" % saved.index(number)
        records.data.save(MODEL, "x", b"last")
        records.data.delete(MODEL, "x")
        assert visible(records) == {}
        assert max(one.version for one in in_tree(records.tree.root).values()) > max(saved)
    assert leftovers(repo.tree_root) == []


def test_processes_that_append_take_turns(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(MODEL, "log", b"", streaming=True)
    _together(repo, *["append"] * 4)
    with Records(repo) as records:
        item = records.data.get(MODEL, "log")
        lines = records.data.read(item).decode().splitlines()
    assert sorted(lines) == sorted(f"{who} {number}" for who in range(4) for number in range(5))
    for who in range(4):
        mine = [line for line in lines if line.startswith(f"{who} ")]
        assert mine == [f"{who} {number}" for number in range(5)]


def test_f038_streaming_data_is_pushed_while_it_grows(team: Team) -> None:
    a = team.clone("a")
    with Records(a.repo) as records:
        records.data.save(MODEL, "log", b"", streaming=True)
    child = _start("together", a.repo.root, "stream")
    while child.poll() is None:
        report = a.push()
        assert not report.failed
        assert not report.conflicts
        peer = team.clone(f"peer-{ulid()}")
        assert peer.pull().exit_code == 0
        with Records(peer.repo) as records:
            lines = records.data.read(records.data.get(MODEL, "log")).decode().splitlines()
        assert lines == [f"0 {number}" for number in range(len(lines))]
    assert child.wait() == 0
    a.push()
    assert a.status().journal_paths == 0
    fresh = team.clone("fresh")
    fresh.pull()
    with Records(fresh.repo) as records:
        assert len(records.data.read(records.data.get(MODEL, "log")).splitlines()) == 20


def test_f035_the_journal_is_empty_after_every_round_of_put_and_push(team: Team) -> None:
    a = team.clone("a")
    for number in range(12):
        with Records(a.repo) as records:
            records.data.save(MODEL, "x", b"%d" % number)
        report = a.push()
        assert (report.engine, report.pushed.files) == ("point", 2)
        status = a.status()
        assert (status.journal_paths, status.journal_bulk) == (0, False)
