"""Inputs for every parser of the index that a store can feed, by the thousand; a process of its own, with limits.

`python -m tests.fuzz.index_inputs KIND SEED COUNT` prints how many inputs were read and how many refused. It ends with
another code than 0 if a parser raises what is not one of Bayou's errors, and by a signal if one takes this process
along, or more memory or time than a client has for a store.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from bayou.core.errors import BayouError, NodeDamaged
from bayou.core.ids import ulid
from bayou.index.check import salvage
from bayou.index.head import Gc, Replica, advance, encode_head, first_head, parse_head
from bayou.index.log import Tally, read_page
from bayou.index.node import Branch, Child, Leaf, Node, Pointer, branch, child_of, leaf, name, root_of
from bayou.index.node_store import decode, encode
from bayou.leases import objects
from bayou.objectstore import keys
from bayou.objectstore.open import open_store
from tests.index.reference import entry, some
from tests.index.resealed import mutated

MEMORY = 1 << 30
"""Beyond what the process has when it begins."""
CPU_S = 3000

Read = Callable[[random.Random], bool]
"""Make an input and read it; return whether it was refused. Only Bayou's own errors are refusals."""

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, 1e308, -0.0, "", "0", "../x", "a" * 2000, "\0", "\ud800", "\u202e", "/", ".", "..", "~", "9999-99-99"),
    *("0000-00-00T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "2026-01-01T00:00:00.000Z\n", "٣" * 4),
    *([], {}, [[]], [{}], {"a": {}}, [1] * 100, {"node": "x"}, "0-" + "0" * 64, "63-" + "f" * 64 + "-c"),
]


def changed(value: Any, chance: random.Random) -> Any:
    """Return a document with one place in it changed: another value, a field more, fewer, or twice."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        field = chance.choice(list(value))
        turn = chance.random()
        if turn < 0.1:
            return {key: kept for key, kept in value.items() if key != field}
        if turn < 0.15:
            return {**value, chance.choice(["", "new", "\ud800", "format", "older"]): chance.choice(NASTY)}
        return {**value, field: changed(value[field], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        turn = chance.random()
        if turn < 0.2:
            return value[:at] + value[at + 1 :]
        if turn < 0.4:
            return value[: at + 1] + value[at:]
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(NASTY)


def document(whole: Any, chance: random.Random) -> bytes:
    """Return a document that was changed: in its values, in its bytes, cut short, or deep."""
    for _ in range(chance.choice((0, 1, 1, 2))):
        whole = changed(whole, chance)
    data = bytearray(json.dumps(whole).encode())
    turn = chance.random()
    if turn < 0.15:
        del data[chance.randrange(len(data) + 1) :]
    elif turn < 0.3 and data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    elif turn < 0.32:
        data[:0] = chance.choice((b"[", b'{"a":')) * chance.choice((10, 70, 100_000))
    elif turn < 0.35:
        at = chance.randrange(len(data) + 1)
        data[at:at] = chance.choice((b"\xff", b"\\ud800", b"9" * 5000, b"NaN", b"\0", b"{" * 5000, b'"root":{'))
    return bytes(data)


@cache
def head() -> dict[str, Any]:
    node = leaf(some(5))
    root = root_of(0, child_of(node, name(node.digest, "c1")))
    found = first_head(store="s1", commit="c1", at="2026-01-01T00:00:00.000Z", by="a@b", root=root, tally=Tally(5))
    for number in range(5):
        found, _ = advance(
            found,
            commit=f"c{number + 2}",
            at="2026-01-01T00:00:00.000Z",
            by="a@b",
            root=root,
            trash=root,
            tally=Tally(),
            gc=Gc(number, "2026-01-01T00:00:00.000Z"),
        )
    told: dict[str, Any] = json.loads(
        encode_head(replace(found, older="p1", rebuilt="c2", replica=Replica("s2", 1, "c", None, root, root, True)))
    )
    return told


def read_heads(chance: random.Random) -> bool:
    data = document(head(), chance)
    try:
        parse_head(data, "memory://x")
    except BayouError:
        try:
            salvage(data, "memory://x")
        except BayouError:
            pass
        return True
    return False


@cache
def pages() -> Any:
    return open_store(f"memory://fuzz-{ulid()}")


def read_pages(chance: random.Random) -> bool:
    whole = {"id": "p1", "older": "p0", "rows": head()["log"]}
    pages().put(keys.log_page("p1"), document(whole, chance))
    try:
        read_page(pages(), "p1")
    except BayouError:
        return True
    return False


LEASE = json.loads(objects.encode(objects.HeldLease("k", "h", "h", 1, "n", "2026-01-01T00:00:00.000Z", 30.0)))


def read_leases(chance: random.Random) -> bool:
    found = objects.decode(document(chance.choice((LEASE, {"free": True, "nonce": "n"})), chance))
    if isinstance(found, objects.HeldLease):
        assert 0 < found.ttl_s <= 86400
        objects.encode(found.renewal())
        str(found)
    return isinstance(found, objects.CorruptLease)


@cache
def nodes() -> list[tuple[Node, bytes]]:
    plain = [entry("data/a"), entry("files/b", 0, push=None, sha256=None, etag=None, version="7")]
    leaves: list[Leaf] = [leaf(some(1)), leaf(plain), leaf(some(40)), leaf(some(600))]
    kids = [child_of(one, name(one.digest, "c1")) for one in (leaf(some(3)), leaf([entry("z/z")]))]
    made: list[Node] = [*leaves, branch(1, sorted(kids, key=lambda kid: kid.first))]
    return [(one, encode(one)) for one in made]


def read_nodes(chance: random.Random) -> bool:
    node, data = chance.choice(nodes())
    known: Child | Pointer = child_of(node, name(node.digest, "c1"))
    if chance.random() < 0.3:
        known = Pointer(node.level, known.node)
    try:
        found = decode(mutated(data, chance), node.level, known)
    except NodeDamaged as error:
        if known.node not in error.message or "\n" in error.message:
            raise AssertionError(error.message) from error
        return True
    # The digest of a branch does not cover which commit wrote a child, so that one byte may be another.
    assert found.digest == node.digest, "whatever is accepted has the digest that was asked for"
    assert isinstance(found, Branch) or found == node
    return False


KINDS: dict[str, Read] = {"heads": read_heads, "pages": read_pages, "leases": read_leases, "nodes": read_nodes}


def main(kind: str, seed: int, count: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    refused = Counter[bool]()
    for number in range(seed, seed + count):
        try:
            refused[KINDS[kind](random.Random(number))] += 1
        except BaseException:
            print(f"seed {number} of {kind}", file=sys.stderr)
            raise
    print(refused[False], refused[True])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
