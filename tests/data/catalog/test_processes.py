"""Many processes on one catalog, and processes that die between a file and its row."""

from __future__ import annotations

import pytest

from bayou.data.records import Records
from bayou.repo import Repo
from bayou.state.connection import Connection
from tests.data.catalog.scene import REPORT, VPC, brief, catalog_of, listed, metadata, write
from tests.sync.children import run, run_to_death, start
from tests.sync.conftest import Team

OPEN = """
from bayou.data.records import Records
from bayou.repo import open_repo
from bayou.sync.plan.policy import ModelRef

repo = open_repo(sys.argv[1])
model = ModelRef("aws/ec2/vpc", "3f0e7bd2-62cf-4c59-9d0f-36d0a2f3e0b1", "main-vpc")
"""

TOGETHER = (
    OPEN
    + """
def work(number):
    with Records(repo) as records:
        records.data.save(model, sys.argv[2].format(number), b"{}")
        records.catalog.refresh()
        assert len(records.catalog.versions(model.id, sys.argv[2].format(number))) >= 1

wait, go = os.pipe()
pids = []
for number in range(10):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)
        try:
            work(number)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    pids.append(pid)
os.close(go)
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 10
"""
)

REBUILD = (
    OPEN
    + """
from collections import Counter

with Records(repo) as records:
    catalog = records.catalog
    print("ready", flush=True)
    for line in sys.stdin:
        catalog._file.write(lambda db: db.execute("DELETE FROM meta WHERE key = 'position'"))
        catalog.refresh()
        most = Counter(row.item for row in catalog.find())
        print(max(most.values(), default=0), flush=True)
"""
)


@pytest.mark.parametrize("before", ["nothing", "garbage"])
def test_f114_ten_processes_that_open_everything_for_the_first_time_all_write(repo: Repo, before: str) -> None:
    if before == "garbage":
        (repo.root / ".bayou" / "catalog.db").write_bytes(b"no database" * 1000)
    run(TOGETHER, repo.root, "item-{}")
    assert listed(repo) == [f"main-vpc/item-{number}/1" for number in range(10)]


def test_ten_processes_that_save_one_name_make_ten_rows(repo: Repo) -> None:
    run(TOGETHER, repo.root, "state")
    with catalog_of(repo) as catalog:
        catalog.refresh()
        rows = catalog.versions(VPC.id, "state")
    assert [row.version for row in rows] == list(range(1, 11))
    assert [row.version for row in rows if row.latest] == [10]


def test_f113_a_writer_and_a_rebuild_at_the_same_time_leave_one_latest(repo: Repo) -> None:
    """50 rounds: in each, another process rebuilds the catalog while this one saves, and every other time deletes."""
    alive: dict[str, list[int]] = {f"item-{number}": [] for number in range(3)}
    rebuilder = start(REBUILD, repo.root)
    assert rebuilder.stdin is not None
    assert rebuilder.stdout is not None
    assert rebuilder.stdout.readline() == b"ready\n"
    with Records(repo) as records:
        for number in range(50):
            name = f"item-{number % 3}"
            rebuilder.stdin.write(b"go\n")
            rebuilder.stdin.flush()
            made = records.data.save(VPC, name, b"{}")
            if number % 2:
                records.data.delete(VPC, name, made.version)
            else:
                alive[name].append(made.version)
            assert int(rebuilder.stdout.readline()) <= 1
            found = {row.name: row.version for row in records.catalog.find()}
            assert found == {name: versions[-1] for name, versions in alive.items() if versions}
            assert len(records.catalog.find()) == len(found)
    _, errors = rebuilder.communicate(timeout=60)
    assert rebuilder.returncode == 0, errors.decode()


def test_f115_killed_between_a_file_and_its_row(repo: Repo) -> None:
    assert listed(repo) == []
    body = """
from bayou.data.catalog import Catalog
Catalog.change = die
with Records(repo) as records:
    records.data.save(model, "state", b"{}")
"""
    assert run_to_death(OPEN + body, repo.root)
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line == "the catalog caught up with 1 change"
        assert brief(catalog.find()) == ["main-vpc/state/1"]


def test_f115_killed_between_a_pull_and_its_rows(team: Team) -> None:
    theirs, ours = team.clone("theirs"), team.clone("ours")
    write(theirs.repo, metadata(VPC, "state", 1), metadata(REPORT, "summary", 1))
    theirs.push()
    assert listed(ours.repo) == []
    body = """
from bayou.sync.service import Datastore
with Datastore(repo) as datastore:
    datastore.sync.pull_changed()
    die()
"""
    assert run_to_death(OPEN + body, ours.repo.root)
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().line == "the catalog caught up with 2 changes"
        assert brief(catalog.find()) == ["main-vpc/state/1", "weekly/summary/1"]


def test_f115_killed_between_the_files_of_a_pull_and_base(team: Team) -> None:
    """The files are in place, and only the intent tells of them; afterwards the pull is finished, and tells again."""
    theirs, ours = team.clone("theirs"), team.clone("ours")
    write(theirs.repo, metadata(VPC, "state", 1))
    theirs.push()
    assert listed(ours.repo) == []
    body = """
from bayou.sync.service import Datastore
from bayou.sync.transfer import pull
pull._InstalledBatch.write = die
with Datastore(repo) as datastore:
    datastore.sync.pull_changed()
"""
    assert run_to_death(OPEN + body, ours.repo.root)
    assert listed(ours.repo) == ["main-vpc/state/1"]
    ours.pull()
    assert listed(ours.repo) == ["main-vpc/state/1"]


@pytest.mark.parametrize("moment", ["read", "settle"])
def test_a_killed_rebuild_is_begun_anew(repo: Repo, moment: str) -> None:
    write(repo, *(metadata(VPC, f"item-{number}", 1) for number in range(20)))
    body = {
        "read": "from bayou.data.catalog import derive\nafter(derive, 'derive', 7)\n",
        "settle": "from bayou.data.catalog import follow_directory, follow_store\n"
        "follow_store.finish_refresh = follow_directory.finish_refresh = die\n",
    }[moment]
    assert run_to_death(OPEN + body + "with Records(repo) as records:\n    records.catalog.refresh()\n", repo.root)
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line == "the catalog was missing: rebuilt, 20 rows"
        assert len(catalog.find()) == 20


def test_a_process_that_died_with_a_mark_is_not_waited_for(team: Team) -> None:
    ours = team.clone("ours")
    body = """
from bayou.sync.service import Datastore
with Datastore(repo) as datastore:
    datastore.sync.mark_dirty()
    die()
"""
    assert run_to_death(OPEN + body, ours.repo.root)
    assert listed(ours.repo) == []
    with catalog_of(ours.repo) as catalog:
        assert not catalog.refresh().changed
        from bayou.data.catalog.derive import is_current
        from bayou.state.change_feed import ChangeFeed

        feed = ChangeFeed(Connection(ours.repo))
        assert catalog._file.read(lambda db: is_current(db, feed))


def test_a_list_opens_no_file_of_the_tree_and_makes_no_directory_listing(repo: Repo) -> None:
    """F127: files opened do not grow with the store."""
    from tests.data.catalog.scene import age

    write(repo, *(metadata(VPC, f"item-{number}", version) for number in range(30) for version in (1, 2)))
    age(repo)
    assert len(listed(repo)) == 30
    body = """
opened = []
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(repo.tree_root) in str(arguments[0]):
        opened.append((event, arguments[0]))
with Records(repo) as records:
    sys.addaudithook(hook)
    assert records.catalog.refresh().line is None
    assert len(records.catalog.find()) == 30
    assert len(records.catalog.versions(model.id, "item-3")) == 2
    assert not opened, opened
"""
    run(OPEN + body, repo.root)
