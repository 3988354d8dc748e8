"""Many small files, while they change under the hand, or the server dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.core.errors import BayouError
from bayou.sync.transfer import push
from bayou_testing.faults import Hold, Rule
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from bayou_testing.seaweed import SeaweedServer
from tests.sync.conftest import OBJECTS, Clone, Team
from tests.sync.many_files import SMALL, a, few_connections, pull_fresh
from tests.sync.test_failures_index import in_thread
from tests.sync.test_unread import at_first_read, lay
from tests.sync.turns import meanwhile

__all__ = ["a", "few_connections"]

pytestmark = pytest.mark.s3


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("after", [False, True])
def test_a_file_that_changes_while_others_go_up_is_not_sent_half(
    s3_team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Files that nobody has read yet: the last of them changes when the first is read."""
    lay(a, SMALL)
    last = a.repo.tree_root / "files/199"
    at_first_read(monkeypatch, lambda: last.write_bytes(SMALL["files/199"][::-1]), after=after)
    a.push(adopt=True)
    _, there = pull_fresh(s3_team)
    assert there.pop("files/199", SMALL["files/199"]) in (SMALL["files/199"], last.read_bytes())
    assert there == {path: data for path, data in a.files.items() if path != "files/199"}
    a.push(adopt=True)
    assert pull_fresh(s3_team)[1] == a.files


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("change", ["rewrite", "append", "remove", "link"])
def test_a_file_that_changes_between_its_look_and_its_upload_is_not_sent_half(
    s3_team: Team, a: Clone, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    """Files that were read, and are read again when they go up."""
    a.write_all(SMALL)
    file, old = a.repo.tree_root / "files/150", SMALL["files/150"]
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * len(old))
    changes: dict[str, Callable[[], object]] = {
        "rewrite": lambda: file.write_bytes(b"n" * len(old)),
        "append": lambda: file.write_bytes(old + b"more"),
        "remove": file.unlink,
        "link": lambda: (file.unlink(), file.symlink_to(secret)),
    }
    meanwhile(monkeypatch, push, "begin", changes[change])
    a.push()
    _, there = pull_fresh(s3_team)
    assert there.pop("files/150", old) in (old, b"n" * len(old), old + b"more")
    assert len(there) == len(SMALL)
    assert there.items() <= a.files.items()
    a.push()
    if change in ("rewrite", "append"):
        assert pull_fresh(s3_team)[1] == a.files


@pytest.mark.usefixtures("loose_objects")
def test_a_server_that_is_killed_on_the_way_has_what_it_said_it_has(tmp_path: Path, s3_env: S3Endpoint) -> None:
    with SeaweedServer(tmp_path / "seaweed") as server, HttpProxy(server.host, server.port) as between:
        server.create_bucket("sync-tests")
        team = Team(tmp_path, "s3://sync-tests/killed", {"endpoint": between.url})
        a = team.clone("victim")
        a.write("files/first", "so that there is a head")
        a.push()
        a.write_all(SMALL)
        hold = Hold(threading.Event())
        between.faults.add(Rule(hold, method="PUT", path=OBJECTS, nth=100, times=10_000))

        def fail() -> bool:
            with pytest.raises(BayouError):
                a.push()
            return True

        thread, failed = in_thread(fail)
        assert hold.arrived.wait(30)
        server.kill()
        hold.release.set()
        thread.join()
        assert failed == [True]
        between.faults.clear()
        server.restart()
        assert a.push().pushed.files == len(SMALL)
        assert pull_fresh(team)[1] == a.files
