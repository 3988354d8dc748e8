"""A push dies while its swap is on the way: what programs do until it arrives is not undone by it (V7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from bayou.core.errors import PreconditionFailed
from bayou.objectstore import keys
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.transport import Match
from tests.sync.conftest import Clone, Team

X, Y = "files/x", "files/y"


class Killed(BaseException):
    """The process that waits for the answer is dead."""


class Post:
    """The way of a swap to the store: it may be held up, and its sender killed."""

    def __init__(self) -> None:
        self._holding = False
        self._held: Callable[[], object] | None = None

    def kill_at_the_swap(self, clone: Clone) -> None:
        """Push, and die when the swap is sent; it has not arrived yet."""
        self._holding = True
        with pytest.raises(Killed):
            clone.push()
        assert self._held is not None

    def arrive(self) -> bool:
        """Let the swap arrive; say whether it took effect."""
        assert self._held is not None
        with suppress(PreconditionFailed):
            self._held()
            return True
        return False

    def send(self, real: Callable[..., object], transport: LocalTransport, key: str, *args: Any, **kwargs: Any) -> Any:
        if self._holding and key.endswith(keys.HEAD) and isinstance(kwargs.get("condition"), Match):
            self._holding = False
            self._held = lambda: real(transport, key, *args, **kwargs)
            raise Killed
        return real(transport, key, *args, **kwargs)


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Post:
    post, real = Post(), LocalTransport.put
    monkeypatch.setattr(LocalTransport, "put", lambda *args, **kwargs: post.send(real, *args, **kwargs))
    return post


@pytest.fixture
def a(team: Team) -> Clone:
    clone = team.clone("a")
    clone.write(X, "one")
    clone.sync()
    return clone


def everybody_has(team: Team, clone: Clone, files: dict[str, bytes]) -> None:
    clone.sync()
    fresh = team.clone("fresh")
    fresh.sync()
    assert clone.files == files
    assert fresh.files == files
    assert clone.status().journal_paths == 0
    assert (clone.sync().engine, clone.sync().requests.total) == ("fast", 1)


def test_a_file_deleted_before_its_first_swap_arrives_stays_deleted(team: Team, a: Clone, post: Post) -> None:
    a.write(Y, "never to be")
    post.kill_at_the_swap(a)
    a.delete(Y)
    assert a.pull().exit_code == 0
    assert post.arrive()
    everybody_has(team, a, {X: b"one"})


def test_a_sync_that_finds_nothing_to_push_makes_sure_that_the_swap_comes_too_late(
    team: Team, a: Clone, post: Post
) -> None:
    a.write(Y, "never to be")
    post.kill_at_the_swap(a)
    a.delete(Y)
    report = a.sync()
    assert (report.pushed.files, report.pushed.deleted) == (0, 0)
    assert not post.arrive()
    everybody_has(team, a, {X: b"one"})


@pytest.mark.parametrize("way", ["pull", "sync"])
def test_a_change_that_is_taken_back_before_its_swap_arrives_stays_so(
    team: Team, a: Clone, post: Post, way: str
) -> None:
    a.write(X, "two")
    post.kill_at_the_swap(a)
    a.write(X, "one")
    report = a.sync(mode=way, walk=False)
    assert (report.pushed.files, report.pushed.bytes, report.pulled.files) == (0, 0, 0)
    assert post.arrive() == (way == "pull")
    everybody_has(team, a, {X: b"one"})


def test_a_file_that_a_peer_deleted_meanwhile_is_not_brought_back_by_a_swap(team: Team, a: Clone, post: Post) -> None:
    b = team.clone("b")
    b.sync()
    b.delete(X)
    b.sync()
    a.write(X, "two")  # deleted there and changed here: it is to be pushed back
    post.kill_at_the_swap(a)
    a.delete(X)
    a.pull()
    assert post.arrive()
    everybody_has(team, a, {})


@pytest.mark.parametrize("change", [Clone.lay, Clone.write], ids=["by hand", "journaled"])
def test_what_a_pull_brought_back_before_the_swap_arrives_is_no_change_of_ours(
    team: Team, a: Clone, post: Post, change: Callable[[Clone, str, str], None]
) -> None:
    change(a, X, "two")
    post.kill_at_the_swap(a)
    (a.repo.tree_root / X).unlink()
    assert a.pull().pulled.files == 1
    assert a.files == {X: b"one"}
    assert post.arrive()
    everybody_has(team, a, {X: b"two"})
