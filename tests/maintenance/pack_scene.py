"""A store with packs of every kind, and ways to look at it: what lies where, and whether all bytes are there."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.objectstore import Store, keys
from bayou.packs.read import read_one
from bayou.sync.report import CollectReport, CompactReport
from tests import api
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import entries_of, head_of

PACK_SIZE = 64 << 10
FILE = 6000

GONE_BY = -2.0
"""A grace that ends in the future, as if a day had passed: clocks of stores are coarse."""


def noise(name: str, size: int = FILE) -> bytes:
    """Bytes that do not shrink, the same in every run."""
    return random.Random(name).randbytes(size)


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of 64 KiB, the least that is allowed, so that few files fill one."""
    monkeypatch.setenv("BAYOU_PACK_SIZE", str(PACK_SIZE))


def compact(clone: Clone, **more: object) -> CompactReport:
    return api.compact(clone.repo, **{"dry_run": False, **more})  # type: ignore[arg-type]


def collect(clone: Clone, grace_s: float = GONE_BY) -> CollectReport:
    return api.collect(clone.repo, dry_run=False, grace_s=grace_s)


def head(team: Team) -> Head:
    return head_of(team.store()).head


def rows(team: Team) -> dict[str, Entry]:
    return entries_of(team.store())


def packs_of(team: Team) -> set[str]:
    """The packs that the index names."""
    return {entry.pack for entry in rows(team).values() if entry.pack is not None}


def stored_packs(team: Team) -> set[str]:
    """The packs that the store has."""
    listed = team.keys()
    return {name for key in listed if (name := keys.parse_pack(key)) is not None}


def content(store: Store, entry: Entry) -> bytes | None:
    """Return the bytes of an entry from where it says that they are."""
    if entry.pack is not None:
        return read_one(store, entry)
    found = store.get(entry.key)
    assert found is not None
    return bytes(found.data)


def check(team: Team) -> dict[str, bytes]:
    """Read every file that the index names, and prove it; return them."""
    store = team.store()
    files: dict[str, bytes] = {}
    for path, entry in rows(team).items():
        data = content(store, entry)
        assert data is not None, path
        assert len(data) == entry.size, path
        assert entry.sha256 in (None, hashlib.sha256(data).digest()), path
        files[path] = data
    return files


def without_place(entries: dict[str, Entry]) -> dict[str, tuple[str | None, int, bytes | None, int]]:
    """What entries say about their files, wherever these lie."""
    return {path: (entry.push, entry.size, entry.sha256, entry.modified) for path, entry in entries.items()}


def fresh(team: Team, name: str = "fresh") -> Clone:
    """A clone that pulls everything."""
    clone = team.clone(name)
    report = clone.pull()
    assert report.exit_code == 0, report
    return clone


@dataclass
class Scene:
    """Two clones in step, whose store has small packs, a sparse pack, small objects and a discovered object.

    `reset` puts everything back to where it was.
    """

    team: Team
    a: Clone
    b: Clone
    files: dict[str, bytes]

    def reset(self) -> None:
        for name in ("store", "a", "b"):
            shutil.rmtree(self.team.root / name)
            shutil.copytree(self.team.root / "kept" / name, self.team.root / name)  # with the mtimes: they are ETags
        for name in set(os.listdir(self.team.root)) - {"store", "a", "b", "kept"}:
            shutil.rmtree(self.team.root / name)

    def keep_again(self) -> None:
        """Reset to the present state from now on."""
        shutil.rmtree(self.team.root / "kept")
        self.keep()

    def keep(self) -> None:
        for name in ("store", "a", "b"):
            shutil.copytree(self.team.root / name, self.team.root / "kept" / name)


def make_scene(team: Team, set_env: Callable[[str, str], None]) -> Scene:
    """Push four small packs, one of which is sparse, and two small objects, beside a discovered and a large one."""
    team.store().put(keys.payload("files/found", None), b"was there before Bayou")
    a, b = team.clone("a"), team.clone("b")
    files = {f"files/{name}": noise(name, 300) for name in "pqrstuvw"}
    files |= {"data/t/m/n/1/raw": b"1", "data/t/m/n/1/metadata.yaml": b"of 1"}
    for some in (["files/p", "files/q"], ["files/r", "files/s", "files/t", "files/u"], ["data/t/m/n/1/raw"]):
        a.write_all({path: files[path] for path in some})
        if some[0].startswith("data"):
            a.write_all({"data/t/m/n/1/metadata.yaml": files["data/t/m/n/1/metadata.yaml"]})
        a.push()
    set_env("BAYOU_PACK_BELOW", "0")
    a.reopen()
    a.write_all({path: files[path] for path in ("files/v", "files/w")})
    a.push()
    set_env("BAYOU_PACK_BELOW", str(256 << 10))
    a.reopen()
    a.delete("files/s", "files/t", "files/u")
    files = {path: data for path, data in files.items() if path[-1] not in "stu"}
    a.push()
    for clone in (a, b):
        assert clone.sync().exit_code == 0
    files["files/found"] = b"was there before Bayou"
    assert a.files == b.files == files
    scene = Scene(team, a, b, files)
    scene.keep()
    return scene
