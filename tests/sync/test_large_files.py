"""Large files on ordinary links: nothing that the store has acknowledged is sent again, and no limit is in the way."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from bayou.core.ids import ulid
from bayou.objectstore import open_store
from bayou.objectstore.multipart import MIB, THRESHOLD
from bayou.objectstore.retry import RetryPolicy
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.sync.report import SyncOptions
from bayou_testing.faults import Fail, Reset, Rule
from bayou_testing.latency import LatencyProxy
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests import api
from tests.sync import children
from tests.sync.conftest import Clone, Team
from tests.sync.test_progress import Stages, watched

SIZE = 33 * MIB
"""Five parts of 8 MiB or less."""

PUSHER = """
from bayou.repo import open_repo
from bayou.state.part_log import ObjectPartLog
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

after(ObjectPartLog, "acknowledged", 3)
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""

COMPLETER = """
from bayou.objectstore.backends.azure_parts import AzureParts
from bayou.objectstore.backends.boto_parts import BotoParts
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

after(AzureParts if sys.argv[2] == "azure" else BotoParts, "complete")
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""

PULLER = """
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions
from bayou.worktree.staging import StagedFile

after(StagedFile, "write", 3)
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="pull"))
"""


def content(size: int = SIZE) -> bytes:
    return os.urandom(MIB) * (size // MIB)


class Parts:
    """A store that takes parts, and the proxy in front of it."""

    def __init__(self, name: str, team: Team, proxy: HttpProxy, open_uploads: Callable[[], list[str]]) -> None:
        self.name = name
        self.team = team
        self.proxy = proxy
        self._open_uploads = open_uploads

    def query(self, number: int) -> str:
        """Return a pattern of the query of a request with that part."""
        if self.name == "azure":
            return f"blockid={base64.b64encode(b'%06d' % number).decode()}"
        return rf"partNumber={number}\b"

    def sent(self, number: int) -> int:
        """Return how many requests with that part the proxy has seen."""
        rows = [urlencode(row.query) for row in self.proxy.log.rows(method="PUT")]
        return sum(re.search(self.query(number), query) is not None for query in rows)

    def bytes(self) -> int:
        """Return the bytes of parts that the proxy has seen, arrived or not."""
        name = "blockid" if self.name == "azure" else "partNumber"
        return sum(row.received for row in self.proxy.log.rows(method="PUT", query=name))

    def open_uploads(self) -> list[str]:
        """Return the uploads that the store would keep for ever."""
        return [key for key in self._open_uploads() if self.team.url.rpartition("/")[2] in key]


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)])
def parts(request: pytest.FixtureRequest) -> Parts:
    if request.param == "azure":  # which drops what no list names, after a week
        proxy = request.getfixturevalue("azure_proxy")
        return Parts("azure", request.getfixturevalue("azure_team"), proxy, list)
    s3: S3Endpoint = request.getfixturevalue("s3_env")
    proxy = request.getfixturevalue("proxy")
    return Parts("s3", request.getfixturevalue("s3_team"), proxy, lambda: [*s3.open_uploads("sync-tests")])


def unfinished(clone: Clone) -> int:
    """The uploads that this clone has recorded as begun and not completed."""
    with Connection(clone.repo) as opened:
        return len(opened.database.rows("SELECT 1 FROM part_upload"))


def numbers(clone: Clone) -> list[int]:
    """The parts that this clone has recorded as acknowledged."""
    with Connection(clone.repo) as opened:
        return [cast("int", number) for (number,) in opened.database.rows("SELECT number FROM part")]


def acknowledged(clone: Clone) -> int:
    """The bytes of parts that this clone has recorded as acknowledged."""
    return sum(min(8 * MIB, SIZE - (number - 1) * 8 * MIB) for number in numbers(clone))


def test_a_killed_upload_is_resumed_by_its_parts(parts: Parts) -> None:
    a, b = parts.team.clone("a"), parts.team.clone("b")
    data = content()
    a.write("files/large", data)
    assert children.run_to_death(PUSHER, a.repo.root)
    assert unfinished(a) == 1
    there = acknowledged(a)
    assert there >= 17 * MIB, "three parts, of which one may be the last and short one"
    known = numbers(a)

    report = a.push()

    assert [parts.sent(number) for number in known] == [1, 1, 1]

    assert SIZE - there <= report.requests.bytes_out < SIZE - there + MIB, "the rest, and some index"
    assert (report.pushed.files, report.pushed.bytes) == (1, SIZE)
    assert unfinished(a) == 0
    b.pull()
    assert b.files == {"files/large": data}
    assert parts.open_uploads() == []


def test_an_upload_that_was_killed_right_after_its_completion_sends_no_part_again(parts: Parts) -> None:
    a, b = parts.team.clone("a"), parts.team.clone("b")
    a.write("files/large", content())
    assert children.run_to_death(COMPLETER, a.repo.root, parts.name)
    before = parts.bytes()

    a.push()

    assert parts.bytes() == before
    b.pull()
    assert b.files == a.files


def test_a_file_that_changed_after_a_killed_upload_is_sent_anew_and_the_old_parts_are_dropped(parts: Parts) -> None:
    a, b = parts.team.clone("a"), parts.team.clone("b")
    a.write("files/large", content())
    assert children.run_to_death(PUSHER, a.repo.root)
    new = content()
    a.write("files/large", new)

    a.push()

    assert unfinished(a) == 0
    assert parts.open_uploads() == []
    b.pull()
    assert b.files == {"files/large": new}


def test_an_upload_that_the_store_has_dropped_meanwhile_begins_anew(parts: Parts) -> None:
    a, b = parts.team.clone("a"), parts.team.clone("b")
    a.write("files/large", content())
    assert children.run_to_death(PUSHER, a.repo.root)
    with Connection(a.repo) as opened, opened.database.transaction() as db:
        db.execute("UPDATE part_upload SET upload = 'gone' || upload")
        db.execute("UPDATE part SET tag = 'gone' || substr(tag, 5)")

    a.push()

    b.pull()
    assert b.files == a.files


@pytest.mark.s3
def test_v5_a_collection_aborts_uploads_that_nobody_continues_and_a_push_begins_anew(
    s3_team: Team, s3_env: S3Endpoint
) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write("files/small", b"so that there is a head")
    a.push()
    a.write("files/large", content())
    assert children.run_to_death(PUSHER, a.repo.root)
    assert api.collect(a.repo, dry_run=True, grace_s=3600).leftovers_deleted == 0
    time.sleep(1.1)  # the store's times have seconds

    assert api.collect(a.repo, dry_run=False, grace_s=0).leftovers_deleted == 1

    assert not [key for key in s3_env.open_uploads("sync-tests") if s3_team.url.rpartition("/")[2] in key]
    a.push()
    b.pull()
    assert b.files == a.files


@pytest.mark.parametrize("trouble", [Fail(503), Reset()])
def test_a_part_that_fails_in_passing_is_the_only_one_that_is_sent_again(parts: Parts, trouble: Fail | Reset) -> None:
    a = parts.team.clone("a")
    a.write("files/large", content())
    parts.proxy.faults.add(Rule(trouble, method="PUT", query=parts.query(2), times=2))

    a.push()

    assert SIZE < parts.bytes() <= SIZE + 2 * 8 * MIB


@pytest.mark.s3
def test_a_killed_download_is_resumed_from_what_was_staged(s3_team: Team, proxy: HttpProxy) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    data = content()
    a.write("files/large", data)
    a.push()
    assert children.run_to_death(PULLER, b.repo.root)
    seen = len(proxy.log.rows(method="GET"))

    b.pull()

    assert b.files == {"files/large": data}
    assert sum(row.sent for row in proxy.log.rows(method="GET")[seen:]) <= SIZE - 2 * 8 * MIB
    assert not list((b.repo.state / "incoming").glob("*.partial"))


@pytest.mark.s3
def test_a_staged_download_that_is_torn_is_read_again_as_a_whole(s3_team: Team) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    data = content()
    a.write("files/large", data)
    a.push()
    assert children.run_to_death(PULLER, b.repo.root)
    (left,) = (b.repo.state / "incoming").glob("*.partial")
    with open(left, "r+b") as file:
        file.write(bytes(4096))

    assert b.pull().failed == []
    assert b.files == {"files/large": data}


class Steps(Stages):
    """Keeps the bytes of each call, too."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, int]] = []

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        super().advance(files, bytes)
        if bytes:
            self.steps.append((self.seen[-1][0], bytes))


def test_the_bytes_of_one_large_file_are_told_part_by_part(parts: Parts) -> None:
    a, b = parts.team.clone("a"), parts.team.clone("b")
    a.write("files/large", content())
    parts.proxy.faults.add(Rule(Fail(503), method="PUT", query=parts.query(3), times=1))
    for clone, what in ((a, "pushing"), (b, "pulling")):
        steps = Steps()
        api.sync(clone.repo, SyncOptions(), progress=steps)
        told = [size for stage, size in steps.steps if stage == what]
        assert len(told) >= 4
        assert sum(told) == SIZE, "no part counts twice"


@pytest.mark.s3
@pytest.mark.parametrize(("killed", "what"), [(PUSHER, "pushing"), (PULLER, "pulling")])
def test_bytes_that_a_killed_command_has_moved_are_no_progress_of_the_next_one(
    s3_team: Team, killed: str, what: str
) -> None:
    clone = s3_team.clone("a")
    clone.write("files/large", content())
    if what == "pulling":
        clone.push()
        clone = s3_team.clone("b")
    assert children.run_to_death(killed, clone.repo.root)
    steps = Steps()

    api.sync(clone.repo, SyncOptions(), progress=steps)

    told = sum(size for stage, size in steps.steps if stage == what)
    assert steps.skipped >= 2 * 8 * MIB
    assert told + steps.skipped == SIZE


def test_many_files_are_told_one_by_one(team: Team) -> None:
    a = team.clone("a")
    a.write_all({f"files/{number}": os.urandom(300_000) for number in range(10)})
    stages = watched(a)
    assert (10, 3_000_000) in stages.done


@pytest.fixture
def slow_team(tmp_path: Path, s3_env: S3Endpoint, request: pytest.FixtureRequest) -> Any:
    """A team at the far end of a slow link, with limits that are scaled down as the link is scaled up."""
    with LatencyProxy(s3_env.host, s3_env.port, seconds=0.01, **request.param) as proxy:
        yield Team(tmp_path, f"s3://sync-tests/{ulid()}", {"endpoint": proxy.url}), proxy


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests have 3 s where they have 60 s, and the link 20 MB/s where it has 1 MB/s."""
    policy = RetryPolicy(request_timeout_s=3.0, least_rate=20 * 128 * 1024)

    def store(repo: Repo) -> Any:
        config = repo.config.datastore
        return open_store(config.url or "", namespace=config.namespace, options=config.options, policy=policy)

    monkeypatch.setattr(Repo, "store", store)


@pytest.mark.s3
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("slow_team", [{"rate": 20e6}], indirect=True)
def test_a_file_that_takes_many_times_the_limit_of_a_request_arrives(slow_team: tuple[Team, LatencyProxy]) -> None:
    team, proxy = slow_team
    a, b = team.clone("a"), team.clone("b")
    data = content(48 * MIB)
    a.write("files/large", data)
    a.push()
    b.pull()
    assert b.files == {"files/large": data}
    assert proxy.usage().bytes_up < 1.1 * len(data), "nothing was sent twice"


@pytest.mark.s3
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("slow_team", [{"rate": 20e6}], indirect=True)
def test_many_files_that_share_a_slow_link_arrive(slow_team: tuple[Team, LatencyProxy]) -> None:
    team, proxy = slow_team
    a, b = team.clone("a"), team.clone("b")
    files = {f"files/{number:02}": os.urandom(2_000_000) for number in range(20)}
    a.write_all(files)
    a.push()
    b.pull()
    assert b.files == files
    assert proxy.usage().bytes_up < 1.1 * sum(map(len, files.values()))


@pytest.mark.s3
@pytest.mark.parametrize("slow_team", [{"reset_every": 20 * MIB}], indirect=True)
def test_a_large_file_arrives_through_resets(slow_team: tuple[Team, LatencyProxy]) -> None:
    team, proxy = slow_team
    a, b = team.clone("a"), team.clone("b")
    data = content(40 * MIB)
    a.write("files/large", data)
    a.push()
    b.pull()
    assert b.files == {"files/large": data}
    used = proxy.usage()
    assert used.resets >= 2
    assert used.bytes_up + used.bytes_down < 2 * len(data) + used.resets * 2 * THRESHOLD


@pytest.mark.s3
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    "slow_team", [{"rate": 20e6, "stall_every": 1_300_000, "stall_seconds": 0.2}], indirect=True, ids=["loss"]
)
def test_large_and_small_files_arrive_over_a_link_that_loses_packets(slow_team: tuple[Team, LatencyProxy]) -> None:
    team, proxy = slow_team
    a, b = team.clone("a"), team.clone("b")
    files = {"files/large": content(20 * MIB)} | {f"files/{number}": os.urandom(300_000) for number in range(10)}
    a.write_all(files)
    a.push()
    b.pull()
    assert b.files == files
    used = proxy.usage()
    assert used.stalls >= 20
    assert used.bytes_up < 1.1 * sum(map(len, files.values())), "a stall is no failure: nothing was sent twice"


RECORDER = """
import bayou.sync.transfer.push as push
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

after(push, "_record")
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""

INSTALLER = """
import bayou.sync.transfer.pull as pull
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.report import SyncOptions

after(pull, "install_batch")
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="pull"))
"""


@pytest.mark.s3
@pytest.mark.parametrize("slow_team", [{"rate": 2e6}], indirect=True)
def test_files_that_a_killed_command_has_moved_on_a_slow_link_are_not_moved_again(
    slow_team: tuple[Team, LatencyProxy],
) -> None:
    """It records what has arrived at least once a second, and not once for many files."""
    team, _ = slow_team
    a, b = team.clone("a"), team.clone("b")
    size, count = 300_000, 20
    files = {f"files/{number:02}": os.urandom(size) for number in range(count)}
    a.write_all(files)

    assert children.run_to_death(RECORDER, a.repo.root)
    with Connection(a.repo) as opened:
        ((there,),) = opened.database.rows("SELECT count(*) FROM upload WHERE done = 1")
    assert 1 <= int(str(there)) < count
    report = a.push()
    assert (report.pushed.files, report.requests.bytes_out // size) == (count, count - int(str(there)))

    assert children.run_to_death(INSTALLER, b.repo.root)
    here = len(b.files)
    assert 1 <= here < count
    report = b.pull()
    assert (report.pulled.files, report.requests.bytes_in // size) == (count - here, count - here)
    assert b.files == files


LOSS = {"stall_every": 1 << 20, "stall_seconds": 0.5}
RESETS = {"reset_every": 50 << 20}
REAL: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "200 MB at 1 MB/s": ({"rate": 1e6}, {"files/large": 200}),
    "500 MB at 1.5 MB/s": ({"rate": 1.5e6}, {"files/large": 500}),
    "40 files of 2 MB at 1 MB/s": ({"rate": 1e6}, {f"files/{number}": 2 for number in range(40)}),
    "200 MB at 2 MB/s with loss": ({"rate": 2e6, **LOSS}, {"files/large": 200}),
    "40 files of 2 MB at 2 MB/s with loss": ({"rate": 2e6, **LOSS}, {f"files/{number}": 2 for number in range(40)}),
    "200 MB at 2 MB/s with resets": ({"rate": 2e6, **RESETS}, {"files/large": 200}),
    "200 MB at 2 MB/s, killed on the way": ({"rate": 2e6}, {"files/large": 200}),
}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.s3
@pytest.mark.parametrize("case", REAL)
def test_real_sizes_on_real_links(case: str, tmp_path: Path, s3_env: S3Endpoint) -> None:
    shape, sizes = REAL[case]
    with LatencyProxy(s3_env.host, s3_env.port, seconds=0.05, **shape) as proxy:
        team = Team(tmp_path, f"s3://sync-tests/{ulid()}", {"endpoint": proxy.url})
        a, b = team.clone("a"), team.clone("b")
        files = {path: os.urandom(1_000_000) * mb for path, mb in sizes.items()}
        a.write_all(files)
        if "killed" in case:
            assert children.run_to_death(PUSHER, a.repo.root)
        a.push()
        if "killed" in case:
            assert children.run_to_death(PULLER, b.repo.root)
        b.pull()
        assert b.files == files
        used = proxy.usage()
        again = used.resets * 2 * THRESHOLD + (4 * 8 * MIB if "killed" in case else 0)
        assert used.bytes_up < 1.1 * sum(map(len, files.values())) + again
