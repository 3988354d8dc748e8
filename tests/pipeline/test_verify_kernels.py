"""The kernels of verify and of collection, without Spark: they find what one process finds, whatever the parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.errors import BadAnswer, DeadlinePassed, NodeDamaged
from bayou.index.build import build
from bayou.index.check import damage_of, outline
from bayou.index.chunk import Shape
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, first_head
from bayou.index.log import Tally
from bayou.index.nodes import StoreNodes, StoreSink
from bayou.index.span import Spans
from bayou.index.tree import Tree
from bayou.pipeline.arrow import batch, key_bytes, key_text, rows
from bayou.pipeline.balance import assign
from bayou.pipeline.kernels import judge, sweep
from bayou.pipeline.kernels.compare import (
    CASES,
    DAMAGED,
    ENTRY,
    FINDINGS,
    OBJECT,
    TRASH_REFUSED,
    UNSAFE,
    WASTED,
    Compare,
    Finding,
    ReadBack,
    cases,
    inside,
)
from bayou.pipeline.kernels.judge import JUDGED, Judge, Verdict, without_others
from bayou.pipeline.kernels.sweep import SWEPT
from bayou.pipeline.sources.entries import leaf_refs
from bayou.pipeline.sources.named import NAMED, read
from bayou.store import keys
from bayou.store.keys import Key
from bayou.store.large import Downloaded
from bayou.store.recipe import Recipe
from bayou.sync.compare import compare
from bayou.sync.garbage import SweepHere
from bayou.sync.judge import CHANGED, LEFTOVER, MISSING, READ, TRASH, UNINDEXED, WELL, Rules, read_back
from bayou.sync.progress import Silent
from bayou.sync.retained import retained
from tests.index.memory import MemoryStore

SMALL = Shape(3, 6, 2, 4)
PUSHES = [f"01J8XG4Q6V5T3N2M1K0H9G8F7{letter}" for letter in "ABC"]

names = st.sampled_from(["a", "b", "a-b", "a.b", "é", "raw", ".lock", "~x", "", "x\x01"])
paths_ = st.builds(
    lambda root, rest: "/".join([root, *rest]),
    st.sampled_from(["data", "files", "elsewhere"]),
    st.lists(names, min_size=1, max_size=3),
)
pushes = st.sampled_from([None, None, *PUSHES])
objects = st.dictionaries(st.tuples(paths_, pushes), st.sampled_from([b"", b"1", b"22"]), max_size=30)
changes = st.sampled_from(["same", "same", "same", "gone", "size", "etag", "bytes", "unhashed"])


class Bucket(MemoryStore):
    """A store of which objects can be downloaded."""

    def download(self, key: Any, target: Any, size: int) -> Downloaded:
        found = self.get(key)
        assert found is not None
        if len(found.data) != size:
            raise BadAnswer("another size")
        return Downloaded(found.meta, hashlib.sha256(found.data).digest())

    def delete(self, named: Any) -> None:
        for key in named:
            self.objects.pop(key, None)


@dataclass
class Scene:
    store: Bucket
    head: Head


@st.composite
def scenes(draw: Any) -> Scene:
    """A store whose index, trash and objects agree here and there, and whose nodes are not all there."""
    listed = draw(objects)
    store = Bucket({keys.payload(path, push): data for (path, push), data in listed.items()})
    entries: dict[str, Entry] = {}
    wasted: dict[str, Entry] = {}
    for (path, push), data in listed.items():
        if not draw(st.booleans()):
            continue
        found = store.objects[keys.payload(path, push)].meta
        entry = Entry(path, push, len(data), hashlib.sha256(data).digest(), found.etag, found.version, 1)
        change = draw(changes)
        if change == "gone":
            del store.objects[entry.key]
        entry = {
            "size": Entry(path, push, 7, entry.sha256, entry.etag, None, 1),
            "etag": Entry(path, push, entry.size, entry.sha256, "other", None, 1),
            "bytes": Entry(path, push, entry.size, bytes(32), entry.etag, None, 1),
            "unhashed": Entry(path, push, entry.size, None, entry.etag, None, 1),
        }.get(change, entry)
        if push is None and draw(st.integers(0, 3)) == 0:
            wasted[path] = entry
        else:
            entries[path] = entry
    first = {path: entry for path, entry in (entries | wasted).items() if draw(st.booleans())}
    roots = [_tree(store, rows, f"c{at}") for at, rows in enumerate((first, entries, wasted))]
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=roots[0], tally=Tally())
    head, _ = advance(head, commit="c1", at=_at(1), by="me", root=roots[1], trash=roots[2], tally=Tally())
    store.put(keys.HEAD, b"head")
    return Scene(store, head)


def _at(second: int) -> str:
    return f"2023-11-14T22:13:2{second}.000Z"


def _tree(store: Bucket, rows: dict[str, Entry], commit: str) -> Any:
    sink = StoreSink(store, commit)  # type: ignore[arg-type]
    root = build([rows[path] for path in sorted(rows)], sink, SMALL)
    sink.flush()
    return root


def _lose(draw: Any, scene: Scene) -> None:
    there = sorted(key for key in scene.store.objects if key.startswith(".bayou/nodes/"))
    for key in draw(st.lists(st.sampled_from(there), max_size=2, unique=True)) if there else []:
        del scene.store.objects[key]


def listing(store: Bucket) -> list[tuple[Any, ...]]:
    """What the listing says, judged, as cases; and the keys refused."""
    judged = Judge(store)  # type: ignore[arg-type]
    batches = [judged(page) for page in store.list()]
    verdicts = [Verdict(*row) for one in batches for row in rows(one, JUDGED.names)]
    others = frozenset(key_text(one.key) for one in verdicts if one.verdict == judge.STORE and one.key)
    return [Verdict(*row) for one in without_others(others, batches) for row in rows(one, JUDGED.names)]


def in_parts(found: list[tuple[Any, ...]], parts: int) -> list[list[Any]]:
    """Divide cases by key, as a shuffle does, and sort each part."""
    shared: list[list[Any]] = [[] for _ in range(parts)]
    for row in found:
        shared[hash(row[0]) % parts].append(row)
    return [[batch(CASES, list(zip(*sorted(part, key=lambda row: row[0]), strict=True)))] for part in shared if part]


def by_kernels(scene: Scene, deep: bool, parts: int) -> dict[str, Any]:
    """Do what the job does, with lists in place of data frames."""
    store: Any = scene.store
    source = StoreNodes(store)
    index, trash = outline(source, scene.head.root), outline(source, scene.head.trash)
    told = [
        row
        for kind, tree in ((ENTRY, index), (WASTED, trash))
        for ref in tree.leaves
        for one in read(store, kind, [ref])
        for row in rows(one, NAMED.names)
    ]
    bad = {key_text(row[0]): row[-1] for row in told if row[1] == DAMAGED}  # type: ignore[arg-type]
    spans = [one.span for one in index.damage]
    spans += [damage_of(ref, 0, NodeDamaged("")).span for ref in index.leaves if ref.node in bad]
    rules = Rules(Spans(spans), deep)
    verdicts = listing(scene.store)
    found = [row[:-1] for row in told if row[1] in (ENTRY, WASTED)]
    found += [
        (one.key or key_bytes(one.path or ""), OBJECT, one.size, None, one.etag, one.version, one.modified)
        for one in verdicts
        if one.verdict in (judge.PAYLOAD, judge.PUSHED)
    ]
    kernel = Compare(None, rules)  # type: ignore[arg-type]
    findings = [one for part in in_parts(found, parts) for one in kernel.findings(store, cases(part))]
    read_ones = [one.entry for one in findings if one.finding == READ]
    findings += [Finding.of(finding, entry) for finding, entry in read_back(store, read_ones) if finding != WELL]
    counts = Counter[str]()
    for one in findings:
        counts[one.finding] += one.number
    crowded = {path for part in in_parts(found, parts) for one in inside(part) for (path,) in rows(one, ["path"])}
    strays = {one.path for one in findings if one.finding == UNINDEXED}
    refused = {(key_text(one.key), one.reason) for one in verdicts if one.verdict == judge.REFUSED}
    unsafe = {(key_text(row[0]), row[-1], row[1] == TRASH_REFUSED) for row in told if row[1] in UNSAFE}  # type: ignore[arg-type]
    return {
        "missing": sorted(one.path for one in findings if one.finding == MISSING),
        "changed": sorted(one.path for one in findings if one.finding == CHANGED),
        "unindexed": sorted(strays - crowded),
        "learned": sorted(one.path for one in findings if one.finding == "learned"),
        "leftovers": counts[LEFTOVER],
        "trash": counts[TRASH],
        "refused": {path for path, _ in refused} | (strays & crowded),
        "unsafe": unsafe,
        "damaged": len(index.damage) + len(trash.damage) + len(bad),
    }


@given(st.data(), scenes(), st.booleans(), st.integers(1, 4))
def test_however_keys_are_divided_the_findings_are_those_of_one_process(data, scene, deep, parts):
    _lose(data.draw, scene)
    expected = compare(scene.store, scene.head, Silent(), deep=deep)

    found = by_kernels(scene, deep, parts)

    assert found == {
        "missing": expected.missing,
        "changed": expected.changed,
        "unindexed": expected.unindexed,
        "learned": sorted(path for some in expected.mendable() for path in some.hashed),
        "leftovers": expected.leftovers,
        "trash": expected.trash,
        "refused": {one.path for one in expected.refused},
        "unsafe": {(one.path, one.reason, one.trash) for one in expected.unsafe},
        "damaged": len(expected.damaged),
    }


def test_what_others_have_as_their_directory_is_refused_also_if_nobody_indexed_them():
    store = Bucket({"files/a": b"1", "files/a/b": b"2", "files/c": b"3", "files/c/~01J8XG4Q6V5T3N2M1K0H9G8F7A/d": b"4"})
    scene = Scene(store, first_head(store="s", commit="c0", at=_at(0), by="me", root=None, tally=Tally()))

    found = by_kernels(scene, False, 2)

    assert (found["refused"], found["unindexed"], found["leftovers"]) == ({"files/a"}, ["files/a/b", "files/c"], 1)
    assert compare(store, scene.head, Silent(), deep=False).unindexed == found["unindexed"]


@given(scenes(), st.integers(0, 40) | st.just(5000), st.integers(1, 4))
def test_however_keys_are_divided_the_garbage_is_that_of_one_process(scene, age, parts):
    store: Any = scene.store
    before = 1_700_000_000_000 + age
    kept = retained(store, scene.head, before)
    trash = Tree(StoreNodes(store), scene.head.trash)
    here = SweepHere(store)
    here.take_stock()
    expected = here.judge(kept, trash, before)
    trees = {sweep.KEPT: [*kept.current, *kept.recent], sweep.ONCE: kept.earlier, WASTED: leaf_refs(trash)}
    told = [
        row[:-1] for kind, refs in trees.items() for one in read(store, kind, refs) for row in rows(one, NAMED.names)
    ]
    told += [
        (key_bytes(meta.key), OBJECT, meta.size, None, meta.etag, meta.version, meta.modified)
        for page in store.list()
        for meta in page
        if not meta.key.startswith(".bayou/")
    ]

    swept = [
        row for part in in_parts(told, parts) for one in sweep.Sweep(before)(part) for row in rows(one, SWEPT.names)
    ]

    doomed = {key_text(row[1]) for row in swept if row[0] not in (sweep.TRASH, TRASH_REFUSED)}
    assert doomed == {meta.key for meta in here._doomed if not meta.key.startswith(".bayou/")}
    counts = Counter(row[0] for row in swept)
    assert (counts[sweep.OLD], counts[sweep.LEFTOVER]) == (expected.objects, expected.leftovers)
    assert {key_text(row[1]) for row in swept if row[0] == sweep.TRASH} == {entry.key for entry in expected.trash}
    assert {key_text(row[1]) for row in swept if row[0] == TRASH_REFUSED} == set(expected.refused)
    # V5: what an entry of the current index names is never garbage.
    assert doomed.isdisjoint(entry.key for ref in kept.current for entry in StoreNodes(store).load(0, ref).rows)


def test_a_huge_file_has_a_task_to_itself():
    tasks = assign({0: 1_000_000, **dict.fromkeys(range(1, 41), 10)}, 4)

    alone = [bucket for bucket, task in tasks.items() if task == tasks[0]]
    assert alone == [0]
    assert sorted(Counter(task for bucket, task in tasks.items() if bucket).values()) == [13, 13, 14]


@pytest.mark.parametrize("seconds", [None, 1e-9])
def test_an_object_may_be_read_for_as_long_as_the_command_has(tmp_path, seconds):
    """And not for the three minutes of a usual call: an object of a terabyte takes hours."""
    recipe = Recipe.of(tmp_path.as_uri(), None, {})
    recipe.open().put(Key("files/a"), b"a")
    row = Finding.of(READ, Entry("files/a", None, 1, None, None, None, 7))
    kernel = ReadBack(recipe, seconds)
    given_to_it = [batch(FINDINGS, [[value] for value in row])]

    if seconds is None:
        assert sum(part.num_rows for part in kernel(given_to_it)) == 1
    else:
        with pytest.raises(DeadlinePassed):
            list(kernel(given_to_it))
