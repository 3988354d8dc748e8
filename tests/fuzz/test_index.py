"""Issue 17, items 7, 8 and 9: whatever a store says, no process dies of it, and no error is not one of ours (V25).

Thousands of inputs here, millions in `./dev soak`. Parsers are fed in processes of their own (`index_inputs`), whose
end tells; what a client makes of a store with such objects is tried with whole commands in this process.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from bayou.core.errors import BayouError
from bayou.index.entry import Entry
from bayou.objectstore import keys
from tests import api
from tests.index.resealed import mutated
from tests.sync.conftest import Clone, Team, team
from tests.sync.indexes import commit_rows, entries_of
from tests.sync.test_hostile_index import put_trash

__all__ = ["team"]

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"

FEW = {"heads": 8_000, "pages": 4_000, "leases": 8_000, "nodes": 3_000}
MANY = {"heads": 1_000_000, "pages": 500_000, "leases": 2_000_000, "nodes": 500_000}
_PER_PROCESS = 50_000


pytestmark = pytest.mark.usefixtures("quick_probe")


def feed(kind: str, seed: int, count: int) -> tuple[int, int]:
    """Feed a parser in a process of its own; return how many inputs were read, and how many refused."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.index_inputs", kind, str(seed), str(count)],
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    read, refused = map(int, ran.stdout.split())
    return read, refused


@pytest.mark.parametrize("kind", FEW)
def test_17_8_and_9_no_input_is_the_end_of_a_process_or_an_error_that_is_not_ours(kind: str) -> None:
    read, refused = feed(kind, 0, FEW[kind])

    assert read + refused == FEW[kind]
    assert read, "some inputs are good, so that the parser is really reached"
    assert refused > FEW[kind] // 10


@pytest.mark.soak
@pytest.mark.parametrize("kind", MANY)
def test_17_8_and_9_nor_are_millions(kind: str, rng: random.Random) -> None:
    seed = rng.randrange(1 << 40)
    for start in range(0, MANY[kind], _PER_PROCESS):
        feed(kind, seed + start, _PER_PROCESS)


@pytest.fixture
def pair(team: Team) -> tuple[Clone, Clone]:
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"files/{number}": b"1" for number in range(20)})
    a.sync()
    b.sync()
    return a, b


def allowed(call: Any, *arguments: Any, **options: Any) -> object:
    """Make a call; an error of ours is an answer, and any other is raised."""
    try:
        return call(*arguments, **options)
    except BayouError as error:
        return error


def resealed_nodes(team: Team, pair: tuple[Clone, Clone], seeds: range) -> None:
    """Store resealed mutants in the place of the root, and run commands on them."""
    a, _ = pair
    store = team.store()
    node = next(key for key in team.keys() if key.startswith(f"{keys.NODES}/"))  # noqa: SIM118
    good = bytes(store.get(keys.as_listed(node)).data)
    for seed in seeds:
        store.put(keys.as_listed(node), mutated(good, random.Random(seed)))
        fresh = team.clone(f"fresh-{seed}")
        allowed(fresh.sync)
        found = allowed(api.verify, fresh.repo, deep=False, repair=False)
        assert not isinstance(found, BayouError), "verify reports what is damaged, and does not stop at it"
        assert found.ok == (not found.damaged)  # type: ignore[attr-defined]
    allowed(api.collect, a.repo, dry_run=False, grace_s=0)
    api.verify(a.repo, deep=False, repair=True)
    assert len(entries_of(store)) == 20, "repair brings back what the store has"
    assert api.verify(a.repo, deep=True, repair=False).ok


def test_17_8_resealed_mutants_in_sync_verify_and_repair(team: Team, pair: tuple[Clone, Clone]) -> None:
    resealed_nodes(team, pair, range(60))


@pytest.mark.soak
def test_17_8_resealed_mutants_in_sync_verify_and_repair_for_long(
    team: Team, pair: tuple[Clone, Clone], rng: random.Random
) -> None:
    start = rng.randrange(1 << 40)
    resealed_nodes(team, pair, range(start, start + 5_000))


TEXTS = [
    *("", "a", "files/x", "files/0", "data/t/m/n/1/raw", "..", "../x", "/x", "data/../x", "files/a\0b", "files/\n"),
    *("files/\u202e", "files/é", "files/e\u0301", ".bayou/head.json", "ns/.bayou/head.json", f"files/~{PUSH}/x"),
    *("x" * 900, "files/" + "y" * 300, "otherapp/config.json", "files\\x", "files//x", "files/.", "~", PUSH, "e"),
]
NUMBERS = [0, 1, -1, 2**31, 2**50, 2**50 + 1, 2**62, 2**63 - 1, -(2**63), 1_700_000_000_000]


def random_row(chance: random.Random) -> Entry:
    text = lambda: chance.choice([None, *TEXTS])  # noqa: E731
    return Entry(
        path=chance.choice(TEXTS[1:]),
        push=chance.choice([None, PUSH, text()]),
        size=chance.choice(NUMBERS),
        sha256=chance.choice([None, bytes(32)]),
        etag=text(),
        version=text(),
        modified=chance.choice(NUMBERS),
    )


def hostile_rows(team: Team, pair: tuple[Clone, Clone], seeds: range) -> None:
    """Commit rows that say anything, in the index and in its trash, and run every command that reads them."""
    a, b = pair
    good = set(entries_of(team.store()))
    outside = team.root / "store/otherapp/config.json"
    outside.parent.mkdir()
    outside.write_text("1")
    (team.root / "copy").mkdir()
    for seed in seeds:
        chance = random.Random(seed)
        rows = {one.path: one for one in (random_row(chance) for _ in range(chance.choice((1, 3, 12))))}
        commit_rows(team.store(), {path: one for path, one in rows.items() if path not in good})
        put_trash(team.store(), *(random_row(chance) for _ in range(chance.choice((0, 2)))))
        pulled, found = b.sync(), api.verify(b.repo, deep=seed % 2 == 0, repair=False)
        assert {one.path for one in pulled.refused} == {
            path for path, one in rows.items() if path not in good and one.refusal() is not None
        }
        assert not found.unsafe or not found.ok
        api.collect(a.repo, dry_run=seed % 3 == 0, grace_s=0)
        if seed % 5 == 0:
            allowed(api.replicate, a.repo, (team.root / "copy").as_uri())
        forget = [one.path for one in found.unsafe]
        forget += [path for path in found.missing if path not in good]
        api.verify(b.repo, deep=False, repair=True, forget=[path for path in forget if path not in good])
        left = {path: one for path, one in entries_of(team.store()).items() if path not in good}
        assert not left, (seed, found.unsafe, found.missing)
        assert api.verify(a.repo, deep=False, repair=False).ok
        assert outside.read_text() == "1"
    assert set(b.files) == good


def test_17_7_and_9_rows_that_say_anything(team: Team, pair: tuple[Clone, Clone]) -> None:
    hostile_rows(team, pair, range(12))


@pytest.mark.soak
def test_17_7_and_9_rows_that_say_anything_for_long(team: Team, pair: tuple[Clone, Clone]) -> None:
    start = random.randrange(1 << 40)
    hostile_rows(team, pair, range(start, start + 2_000))
