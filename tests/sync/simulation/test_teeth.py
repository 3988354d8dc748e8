"""The simulation has teeth: with any one rule of the protocol taken out, it finds out what is lost."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from bayou.index.entry import Entry
from bayou.index.head import Head, encode_head
from bayou.index.log import write_page
from bayou.maintenance.compact import _Moves
from bayou.objectstore import keys
from bayou.state.journal import JournalSnapshot
from bayou.sync.context import SyncContext
from bayou.sync.plan import decision_table
from bayou.sync.plan.decision_table import _compare_remote
from bayou.sync.plan.local_scanner import FileScan
from bayou.sync.transfer.executor import Upload
from tests.sync.simulation.campaign import Found, Tally, play
from tests.sync.simulation.world import Kind

SCENARIOS = 1500

# What a scenario must be about for a rule to matter in it at all; the others would only take time.
NEEDS: dict[str, Callable[[Kind], bool]] = {
    "T5 a swap that may still arrive is reckoned with": lambda kind: kind.late > 20 and kind.crash > 5,
    "T11 what nobody names is untracked": lambda kind: kind.mishaps,
    "V5 what the first head lacks was not deleted": lambda kind: kind.found and not kind.mishaps,
    "P4 a compaction moves only what it has copied": lambda kind: kind.compact,
    "P5 the same bytes of another push are a change": lambda kind: not kind.mishaps,
    "P6 a compaction looks at its packs after a collection": lambda kind: kind.compact and kind.gc,
    "P6 a pack that was sent twice is made again": lambda kind: kind.late > 20 and kind.gc,
}


def swap_blindly(store: Any, head: Head, over: object, page: Any) -> Any:
    if page is not None:
        write_page(store, page)
    return store.put(keys.HEAD, encode_head(head))


def unconditionally(self: Any, batch: Any, head: Head, current: object) -> Any:
    return {path: row.new for path, row in batch.rows.items()}


def unchecked(root: Path, upload: Upload, most: int) -> Upload:
    """Read a file for a pack, and trust that it still has the bytes of the plan."""
    try:
        return replace(upload, data=(root / upload.path).read_bytes()) if upload.data is None else upload
    except OSError:
        return upload


def by_hash_alone(base: Entry | None, remote: Entry | None) -> Any:
    found = _compare_remote(base, remote)
    return decision_table._Remote.MOVED if found is decision_table._Remote.REMADE else found


def forget_attempts(db: sqlite3.Connection, remote_id: int, _: object) -> None:
    db.execute("DELETE FROM pending WHERE place = ?", (remote_id,))


TAKEN_OUT: dict[str, Callable[[], Any]] = {
    "V1 the head is swapped by its version": lambda: patch("bayou.sync.commit.commit.swap_head", swap_blindly),
    "V5 a head is recorded before base has rows of it": lambda: patch(
        "bayou.sync.run.record_compared", lambda *_: None
    ),
    "V5 an own commit is recorded with its rows": lambda: patch(
        "bayou.sync.commit.commit.forget_pending", forget_attempts
    ),
    "V5 what the first head lacks was not deleted": lambda: patch(
        "bayou.sync.plan.planner.forget_unindexed", lambda *_: frozenset()
    ),
    "T5 a commit whose answer was lost is found": lambda: patch("bayou.sync.commit.commit.resolve", lambda *_: None),
    "T5 a swap that may still arrive is reckoned with": lambda: patch(
        "bayou.sync.commit.commit.uncertain_paths", lambda *_: set()
    ),
    "T7 what is open is not dropped": lambda: patch.object(
        JournalSnapshot, "closed_through", lambda self, _: self.through
    ),
    "T8 a pull looks again before it renames": lambda: patch.object(SyncContext, "is_unchanged", lambda *_: True),
    "T9 intents are settled first": lambda: patch("bayou.sync.run.recover_intents", lambda _: None),
    "T11 what nobody names is untracked": lambda: patch.object(FileScan, "_ours", lambda *_: True),
    "T13 a collection announces itself": lambda: patch("bayou.maintenance.gc._announce", lambda _, __, seen, ___: seen),
    "T13 uploads are looked at after a collection": lambda: patch("bayou.sync.transfer.push.recheck", lambda *_: set()),
    "P1 every pack has a key of its own": lambda: patch("bayou.packs.archive.ulid", lambda: "0" * 26),
    "P3 a pack has the bytes of which the entry has the hash": lambda: patch(
        "bayou.sync.transfer.packed.with_data", unchecked
    ),
    "P4 a compaction moves only what it has copied": lambda: patch.object(_Moves, "_choose", unconditionally),
    "P5 the same bytes of another push are a change": lambda: patch.object(
        decision_table, "_compare_remote", by_hash_alone
    ),
    "P6 a compaction looks at its packs after a collection": lambda: patch.object(
        _Moves, "_collected", lambda *_: set()
    ),
    "P6 a pack that was sent twice is made again": lambda: patch(
        "bayou.sync.transfer.push._is_doubtful", lambda entry, sent: sent is None or sent.stored is None
    ),
    "a version that changed meanwhile is left": lambda: patch(
        "bayou.sync.commit.publish._changed_versions", lambda *_: set()
    ),
    "a version that cannot be uploaded whole waits": lambda: patch(
        "bayou.sync.commit.publish.version_dir", lambda _: None
    ),
}


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("rule", TAKEN_OUT)
def test_a_rule_that_is_taken_out_is_missed(rule: str) -> None:
    rng = random.Random(rule)

    matters = NEEDS.get(rule, lambda _: True)

    def search() -> None:
        for _ in range(SCENARIOS):
            seed = rng.randrange(1 << 40)
            if matters(Kind.of(seed)):
                play(seed, Tally())

    with TAKEN_OUT[rule](), pytest.raises(Found):
        search()
