"""Places that leases lie in, and a wait whose time does not pass by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bayou.leases import Leases
from bayou.leases.acquire import Backoff, Wait
from bayou.objectstore import Store, open_store
from bayou.objectstore.open import open_directory
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.s3 import S3Endpoint
from tests.sync.conftest import Team, gcs_team, proxy, s3_env, s3_team, team, wire

__all__ = ["gcs_team", "proxy", "s3_env", "s3_team", "team", "wire"]

QUICK = RetryPolicy(base_s=0.005, cap_s=0.05, request_timeout_s=10, call_deadline_s=30)
SWIFT = Backoff(base_s=0.02, cap_s=0.1)


@dataclass
class Place:
    """One datastore that several processes share."""

    name: str
    url: str | None
    options: dict[str, str]
    directory: Path | None

    def store(self, policy: RetryPolicy = QUICK) -> Store:
        if self.directory is not None:
            return open_directory(self.directory)
        return open_store(str(self.url), options=self.options, policy=policy)

    def leases(self, *, ttl_s: float = 30.0, backoff: Backoff = SWIFT, **kwargs: Any) -> Leases:
        """As another process would open them."""
        return Leases(self.store(), ttl_s=ttl_s, backoff=backoff, **kwargs)

    @property
    def spec(self) -> str:
        """What a child needs to find it."""
        directory = str(self.directory) if self.directory else None
        return json.dumps({"url": self.url, "options": self.options, "directory": directory})


@pytest.fixture
def directory(tmp_path: Path) -> Place:
    (tmp_path / "shared").mkdir()
    return Place("directory", None, {}, tmp_path / "shared")


@pytest.fixture
def s3(s3_team: Team) -> Place:
    """SeaweedFS, through the proxy."""
    return Place("s3", s3_team.url, s3_team.options, None)


@pytest.fixture
def gcs_place(gcs_team: Team) -> Place:
    """The GCS server of `bayou_testing`: versions are generations."""
    return Place("gcs", gcs_team.url, gcs_team.options, None)


@pytest.fixture
def direct(s3: Place, s3_env: S3Endpoint) -> Place:
    """The same place for somebody else, who has a way of his own to it."""
    return Place("s3", s3.url, {"endpoint": s3_env.url}, None)


_BOTH = ["directory", pytest.param("s3", marks=pytest.mark.s3)]
_ALL = [*_BOTH, pytest.param("gcs_place", marks=pytest.mark.gcs)]


@pytest.fixture(params=_ALL)
def place(request: pytest.FixtureRequest) -> Place:
    """Each place that a lease can lie in."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=_BOTH)
def shared(request: pytest.FixtureRequest) -> Place:
    """A directory, and a real S3 server: for tests that take long."""
    found: Place = request.getfixturevalue(request.param)
    return found


@dataclass
class SlowTime:
    """Time that passes only while somebody waits for a lease, and what happens meanwhile."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    naps: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def at(self, moment: float, act: Callable[[], object]) -> None:
        self.due.append((moment, act))

    def pause(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        for moment, act in [one for one in self.due if one[0] <= self.now]:
            self.due.remove((moment, act))
            act()


@pytest.fixture
def slow_time(monkeypatch: pytest.MonkeyPatch) -> SlowTime:
    """Let nobody really sleep who waits for a lease."""
    time = SlowTime()

    def pause(self: Wait, seconds: float) -> None:
        self._slept += seconds
        time.pause(seconds)

    monkeypatch.setattr(Wait, "_pause", pause)
    return time
