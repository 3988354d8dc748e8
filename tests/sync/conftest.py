"""Repos that share one store, as fixtures for the tests of sync."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bayou.objectstore.open as store_open
from bayou.core.ids import ulid
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.backends.directory import LocalTransport
from bayou.packs.archive import LIST_NAME
from bayou.repo import Repo, init_repo, open_repo
from bayou.sync.report import SyncOptions, SyncReport
from bayou.sync.service import Datastore
from bayou_testing.azurite import ACCOUNT, AzuriteServer
from bayou_testing.faulty import Fault, FaultyTransport, Seen
from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests import api
from tests.trusting import trust

OBJECTS = "/~[0-9A-Z]{26}/"
"""Matches the key of a file that is an object of its own."""

UPLOADS = rf"{OBJECTS}|\.bayou/packs/"
"""Matches the key of every object that has files of a push: of one file, or a pack."""


def is_payload(path: str) -> bool:
    """Whether a key, or the path of a request, is of content: of files of a push, or of a discovered file."""
    return ".bayou/" not in path or ".bayou/packs/" in path


@dataclass
class Clone:
    """One clone of a repo, on one machine."""

    repo: Repo

    def write(self, path: str, content: bytes | str) -> None:
        """Write through Bayou, journaled."""
        with Datastore(self.repo) as datastore:
            datastore.tree.write(path, content.encode() if isinstance(content, str) else content)

    def write_all(self, files: dict[str, bytes]) -> None:
        with Datastore(self.repo) as datastore:
            datastore.tree.write_many(list(files.items()))

    def delete(self, *paths: str) -> None:
        with Datastore(self.repo) as datastore:
            datastore.tree.delete_many(list(paths))

    def lay(self, path: str, content: str | bytes) -> None:
        """Put a file into the tree by hand: untracked."""
        file = self.repo.tree_root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def sync(self, **options: Any) -> SyncReport:
        return api.sync(self.repo, SyncOptions(**options))

    def push(self, **options: Any) -> SyncReport:
        return self.sync(mode="push", **options)

    def pull(self, **options: Any) -> SyncReport:
        return self.sync(mode="pull", **options)

    def status(self) -> Any:
        return api.status(self.repo)

    def mark_dirty(self, path: str | None = None) -> None:
        with Datastore(self.repo) as datastore:
            datastore.sync.mark_dirty(path).done()

    @property
    def files(self) -> dict[str, bytes]:
        """Every file in the tree."""
        root = self.repo.tree_root
        return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    def reopen(self) -> None:
        """Read the configuration again."""
        self.repo = open_repo(self.repo.root)

    def lose_state(self) -> None:
        shutil.rmtree(self.repo.state)


@dataclass
class Team:
    """A store, and clones that share it."""

    root: Path
    url: str
    options: dict[str, str]

    def clone(self, name: str, *, namespace: str | None = None, **datastore: Any) -> Clone:
        """Make a clone whose configuration names the store; nothing is synced yet."""
        repo = init_repo(self.root / name)
        lines = [f'url = "{self.url}"']
        if namespace:
            lines.append(f'namespace = "{namespace}"')
        lines += [f"{key} = {value!r}".replace("'", '"') for key, value in datastore.items()]
        if self.options:
            lines += ["[datastore.options]", *(f'{key} = "{value}"' for key, value in self.options.items())]
        repo.file.write_text(repo.file.read_text() + "\n".join(lines) + "\n")
        trust(repo.root)
        return Clone(open_repo(repo.root))

    def store(self, namespace: str | None = None) -> Store:
        return open_store(self.url, namespace=namespace, options=self.options)

    def keys(self, namespace: str | None = None) -> dict[str, int]:
        """Every object of the store, by its key, with its size."""
        return {meta.key: meta.size for page in self.store(namespace).list() for meta in page}

    def payload_keys(self) -> set[str]:
        """The keys of files that are objects of their own, and of everything that is not Bayou's."""
        return {key for key in self.keys() if not key.startswith(".bayou/")}

    def packs(self, namespace: str | None = None) -> set[str]:
        """The names of all packs."""
        return {name for key in self.keys(namespace) if (name := keys.parse_pack(key)) is not None}

    def uploads(self, namespace: str | None = None) -> list[str]:
        """The path of every file that pushes have left in the store, named by the index or not, in order.

        A path is there once for every object and every pack that has it.
        """
        found = [keys.parse_payload(key).path for key in self.keys(namespace) if re.search(OBJECTS, key)]
        for name in self.packs(namespace):
            fetched = self.store(namespace).get(keys.pack(name))
            assert fetched is not None
            with zipfile.ZipFile(io.BytesIO(bytes(fetched.data))) as archive:
                found += [member for member in archive.namelist() if member != LIST_NAME]
        return sorted(found)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is done by this process, or says so: a Spark server would outlive its test."""

    def start(*_: object, **__: object) -> None:
        pytest.fail("this sync is so large that it goes to Spark: give it engine='point'")

    monkeypatch.setattr("bayou.engine.select.spark_engine", start)


@pytest.fixture(params=["packs", "objects"])
def both_ways(request: pytest.FixtureRequest) -> str:
    """Run a test twice: small files travel in packs, and each as an object of its own, as large ones always do."""
    if request.param == "objects":
        request.getfixturevalue("loose_objects")
    return str(request.param)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A team on a directory store."""
    (tmp_path / "store").mkdir()
    return Team(tmp_path, (tmp_path / "store").as_uri(), {})


@pytest.fixture
def s3_env(seaweed: S3Endpoint, quick_probe: None, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    for name, value in seaweed.env().items():
        monkeypatch.setenv(name, value)
    seaweed.create_bucket("sync-tests")
    return seaweed


@pytest.fixture
def proxy(s3_env: S3Endpoint) -> Any:
    """A proxy in front of SeaweedFS: it counts requests, and fails on demand."""
    with HttpProxy(s3_env.host, s3_env.port) as between:
        yield between


@pytest.fixture
def s3_team(tmp_path: Path, proxy: HttpProxy) -> Team:
    """A team on real S3, through a proxy that counts."""
    return Team(tmp_path, f"s3://sync-tests/{ulid()}", {"endpoint": proxy.url})


@pytest.fixture
def azure_proxy(azurite: AzuriteServer, quick_probe: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A proxy in front of Azurite."""
    for name, value in azurite.env().items():
        monkeypatch.setenv(name, value)
    with HttpProxy(azurite.host, azurite.port) as between:
        yield between


@pytest.fixture
def azure_team(tmp_path: Path, azure_proxy: HttpProxy) -> Team:
    return Team(tmp_path, f"az://bayou/{ulid()}", {"endpoint": f"{azure_proxy.url}/{ACCOUNT}"})


@pytest.fixture
def gcs_team(tmp_path: Path, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Team:
    for name, value in gcs.env().items():
        monkeypatch.setenv(name, value)
    return Team(tmp_path, f"gs://bayou/{ulid()}", {})


@dataclass
class Wire:
    """The way to every directory store: requests that were sent, and faults, which count anew for each command."""

    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def cut(self, *faults: Fault) -> None:
        """Put these faults, and no others, on the way; none: all is well again."""
        self.faults[:] = faults

    def sent(self, verb: str, key: str = "") -> list[str]:
        """Return the keys of the requests of one kind whose key has a match of `key`."""
        return [one.key for one in self.seen if one.verb == verb and re.search(key, one.key)]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Watch, and on demand break, what is sent to directory stores."""
    wire = Wire()
    monkeypatch.setitem(
        store_open.BUILT_IN,
        "file",
        lambda place, _: FaultyTransport(LocalTransport(Path(place.bucket)), wire.faults, wire.seen),
    )
    return wire


MakeTeam = Callable[[], Team]
