"""Threads and Spark, with packs and without: from one start, all give the same trees, entries and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.data.sync_hooks import renumber
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.sync.report import SyncReport
from tests.spark.kernel_transfer import kernels_without_spark
from tests.spark.scenes import Fate, Scene, copy, outcome
from tests.sync.conftest import Clone, Team

pytestmark = pytest.mark.timeout(600)

PATHS = [
    *(
        f"data/t/m/{name}/{number}/{file}"
        for name in ("a", "\u00fc b")
        for number in (1, 2)
        for file in ("raw", "metadata.yaml")
    ),
    *("outputs/t/m/o.yaml", "logs/day/host.log", "files/plain", "files/two words", "files/\u20ac/\u540d\u524d"),
    *("files/#hash?query=%41&x+y", "files/'single' \"double\"", "files/-dash", "files/.dot", "files/a[1]{2}*"),
    *("files/UPPER", "files/trailing.", "files/" + "n" * 255, "/".join(["files", *("deep" for _ in range(30)), "x"])),
    *(f"files/many/{at}" for at in range(8)),
]
HERE = ["same", "same", "write", "rewrite", "delete", "lose", "edit", "touch", "undone"]
THERE = ["same", "same", "write", "rewrite", "delete"]
WEIGHTS = ["light", "light", "empty", "middling", "heavy"]
PACKS = {"BAYOU_PACK_BELOW": "40KiB", "BAYOU_PACK_SIZE": "64KiB"}
"""With these a `heavy` file is an object of its own, and two `middling` files fill a pack."""

OBJECTS = {"BAYOU_PACK_BELOW": "0"}

Result = tuple[dict[str, Any], list[Entry], dict[str, bytes]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    fates = tuple(
        Fate(
            path,
            draw(st.booleans()),
            draw(st.sampled_from(HERE)),
            draw(st.sampled_from(THERE)),
            draw(st.sampled_from(WEIGHTS)),
        )
        for path in PATHS
    )
    options: dict[str, Any] = {
        "mode": draw(st.sampled_from(["sync", "push", "pull"])),
        "on_conflict": draw(st.sampled_from(["keep", "ours", "theirs"])),
        "adopt": draw(st.booleans()),
        "renumber": draw(st.sampled_from([None, renumber])),
    }
    return Scene(fates, options)


def configured(values: dict[str, str]) -> pytest.MonkeyPatch:
    patch = pytest.MonkeyPatch()
    for name, value in values.items():
        patch.setenv(name, value)
    return patch


def synced(clone: Clone, scene: Scene, engine: str, config: dict[str, str], window: int) -> Result:
    """Sync a copy of the start; return what it leaves, the entries, and what a fresh clone gets."""
    patch = configured(config)
    try:
        clone.reopen()
        patch.setattr("bayou.sync.plan.windows.WINDOW", window)
        report = clone.sync(**scene.options, engine=engine)
        found = outcome(clone, report)
    finally:
        patch.undo()
    root = clone.repo.root.parent
    fresh = Team(root, (root / "store").as_uri(), {}).clone("fresh")
    assert fresh.pull(engine="point").failed == []
    assert_readable(fresh, report)
    return found, entries(clone), fresh.files


def entries(clone: Clone) -> list[Entry]:
    store = clone.repo.store()
    seen = read_head(store)
    assert seen is not None
    return list(scan(IndexTree(StoreNodes(store), seen.head.root)))


def assert_readable(fresh: Clone, report: SyncReport) -> None:
    """Every entry's bytes lie where it says; a rejected or damaged one would not have been pulled."""
    assert all(one.refusal() is None for one in entries(fresh)), report
    assert set(fresh.files) == {one.path for one in entries(fresh)}


def compare(scene: Scene, root: Path, window: int, started: dict[str, str]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    patch = configured(started)
    try:
        start = scene.make(root / "start")
    finally:
        patch.undo()
    results: dict[tuple[str, str], Result] = {}
    for name, config in (("packs", PACKS), ("objects", OBJECTS)):
        for engine in ("point", "spark"):
            mine = copy(start, root / f"{engine}-{name}")
            results[engine, name] = synced(mine, scene, engine, config, window)

    before = {(one.path, one.push) for one in entries(start)}
    found, rows, files = results["point", "packs"]
    for (_, name), other in results.items():
        assert other[0] == found
        assert other[2] == files
        assert [(one.path, one.size, one.sha256, one.modified) for one in other[1]] == [
            (one.path, one.size, one.sha256, one.modified) for one in rows
        ]
        new = [one for one in other[1] if (one.path, one.push) not in before]
        assert all((one.pack is not None) == (name == "packs" and one.size < 40 << 10) for one in new)


ANYWHERE = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], database=None
)
STARTED = st.sampled_from([PACKS, OBJECTS])


@settings(ANYWHERE, max_examples=6)
@given(scenes(), st.sampled_from([3, 20_000]), STARTED)
def test_kernels_give_what_threads_give_with_packs_and_without(tmp_path, scene, window, started) -> None:
    with kernels_without_spark():
        compare(scene, tmp_path / "scene", window, started)


@pytest.mark.spark
@settings(ANYWHERE, max_examples=2, derandomize=True)
@given(scenes(), st.sampled_from([12, 20_000]), STARTED)
def test_both_engines_give_the_same_with_packs_and_without(warm, tmp_path, scene, window, started) -> None:
    compare(scene, tmp_path / "scene", window, started)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
@settings(ANYWHERE, max_examples=60)
@given(scenes(), st.sampled_from([3, 20_000]), STARTED)
def test_both_engines_give_the_same_wherever_they_start(warm, tmp_path, scene, window, started) -> None:
    compare(scene, tmp_path / "scene", window, started)
