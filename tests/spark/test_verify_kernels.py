"""The jobs of verify and of collection: however a store is divided, they find what one look at all of it finds."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, DeadlinePassed
from bayou.engine.handle import StoreHandle
from bayou.engine.local import LocalExecutor
from bayou.index.build import ChunkParams, build
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, first_head
from bayou.index.log import Tally
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree
from bayou.maintenance.gc_jobs import Sweep, gc_roots
from bayou.maintenance.verify_compare import CHECKED
from bayou.maintenance.verify_job import VerifyJob
from bayou.maintenance.verify_rules import LEARNED, ComparisonResult
from bayou.objectstore import keys
from bayou.objectstore.keys import Key
from bayou.objectstore.multipart import DownloadResult
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.packs.archive import PackBuilder
from bayou.spark.executor import JobKernel, decode
from tests.index.memory import MemoryStore
from tests.maintenance.reference_gc import SweepReference
from tests.maintenance.reference_verify import compare

SMALL = ChunkParams(3, 6, 2, 4)
PUSHES = [f"01J8XG4Q6V5T3N2M1K0H9G8F7{letter}" for letter in "ABC"]

names = st.sampled_from(["a", "b", "a-b", "a.b", "é", "raw", ".lock", "~x", "", "x\x01"])
paths_ = st.builds(
    lambda root, rest: "/".join([root, *rest]),
    st.sampled_from(["data", "files", "elsewhere"]),
    st.lists(names, min_size=1, max_size=3),
)
pushes = st.sampled_from([None, None, *PUSHES])
objects = st.dictionaries(st.tuples(paths_, pushes), st.sampled_from([b"", b"1", b"22"]), max_size=30)
in_other_stores = st.sampled_from(["data/a/.bayou/head.json", "files/.bayou/x/y", "data/b/a/.bayou/é", "x/.bayou/a"])
changes = st.sampled_from(["same", "same", "same", "gone", "size", "etag", "bytes", "unhashed"])
packed_files = st.dictionaries(paths_, st.sampled_from([b"", b"1", b"22", b"3" * 99]), max_size=12)
pack_harms = st.sampled_from([None, None, None, "gone", "short", "long", "bytes"])
row_harms = st.sampled_from([None, None, None, None, "bytes", "outside", "method", "no name"])


class Bucket(MemoryStore):
    """A store of which objects can be downloaded."""

    def download(self, key: Any, target: Any, size: int, **_: Any) -> DownloadResult:
        found = self.get(key)
        assert found is not None
        data = bytes(found.data)
        if len(data) != size:
            raise BadAnswer("another size")
        return DownloadResult(found.meta, hashlib.sha256(data).digest())

    def read_range(self, key: Any, start: int, end: int) -> bytes:
        found = self.get(key)
        assert found is not None
        data = bytes(found.data)[start:end]
        if len(data) != end - start:
            raise BadAnswer("shorter")
        return data

    def delete(self, named: Any) -> None:
        for key in named:
            self.objects.pop(key, None)


@dataclass
class Scene:
    store: Bucket
    head: Head


def _pack(draw: Any, store: Bucket, entries: dict[str, Entry]) -> None:
    """Write a pack that entries name, some of them wrongly, and damage it."""
    files = {path: data for path, data in draw(packed_files).items() if path not in entries}
    builder = PackBuilder()
    for path, data in files.items():
        builder.add(path, PUSHES[0], data, hashlib.sha256(data).digest(), 1)
    pack = builder.finish()
    for member in pack.members:
        place = (pack.name, member.offset, member.stored, member.method)
        entry = Entry(member.path, member.push, member.size, member.sha256, None, None, 1, None, *place)
        harm = draw(row_harms)
        entry = {
            "bytes": replace(entry, sha256=bytes(32)),
            "outside": replace(entry, offset=len(pack.data)),
            "method": replace(entry, method=3),
            "no name": replace(entry, pack="none"),
        }.get(harm, entry)
        if harm != "bytes" or draw(st.booleans()):
            entries[member.path] = entry
    harm, data = draw(pack_harms), pack.data
    whole = {None: data, "gone": None, "short": data[:20], "long": data + b"x", "bytes": bytes(len(data))}[harm]
    if whole is not None:
        store.put(keys.pack(pack.name), whole)


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
    for _ in range(draw(st.integers(0, 2))):
        _pack(draw, store, entries)
    first = {path: entry for path, entry in (entries | wasted).items() if draw(st.booleans())}
    roots = [_tree(store, rows, f"c{at}") for at, rows in enumerate((first, entries, wasted))]
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=roots[0], tally=Tally())
    head, _ = advance(head, commit="c1", at=_at(1), by="me", root=roots[1], trash=roots[2], tally=Tally())
    store.put(keys.HEAD, b"head")
    return Scene(store, head)


def _at(second: int) -> str:
    return f"2023-11-14T22:13:2{second}.000Z"


def _tree(store: Bucket | Store, rows: dict[str, Entry], commit: str) -> Any:
    sink = StoreSink(store, commit)
    root = build([rows[path] for path in sorted(rows)], sink, SMALL)
    sink.flush()
    return root


def _lose(draw: Any, scene: Scene) -> None:
    there = sorted(key for key in scene.store.objects if key.startswith(".bayou/nodes/"))
    for key in draw(st.lists(st.sampled_from(there), max_size=2, unique=True)) if there else []:
        del scene.store.objects[key]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.maintenance.verify_job.ENTRIES_PER_PART", 1)
    monkeypatch.setattr("bayou.maintenance.gc_jobs.ENTRIES_PER_PART", 1)


class ByWire:
    """Runs a job as `SparkExecutor` does, rows as Arrow batches and parts in order, without the server."""

    engine = "spark"
    slots = 10

    def __init__(self, threads: int) -> None:
        self.wanted = threads

    def run(self, job: Any) -> Any:
        parts = job.parts(self.wanted)
        return job.fold(row for part in parts for some in JobKernel(job)(part) for row in decode(job.row, some))


def executors(threads: int) -> Any:
    return LocalExecutor(threads=threads) if threads % 2 else ByWire(threads)


def handle(store: Any) -> StoreHandle:
    return StoreHandle(store, lambda: pytest.fail("nothing leaves this process"))


def told(found: ComparisonResult) -> dict[str, Any]:
    """What a comparison found, all of it."""
    repairable = list(found.repairable())
    return {
        "checked": found.checked,
        "missing": found.missing,
        "changed": found.changed,
        "unindexed": found.unindexed,
        "refused": found.refused,
        "unsafe": found.unsafe,
        "leftovers": found.leftovers,
        "trash": found.trash,
        "damaged": sorted(found.damaged),
        "totals": found.totals,
        "to upload": [entry for some in repairable for entry in some.lost],
        "to adopt": [path for some in repairable for path in some.unindexed],
        "learned": [entry for some in repairable for entry in some.hashed.values()],
    }


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_parts")
@settings(suppress_health_check=[*HealthCheck])
@given(st.data(), scenes(), st.booleans(), st.integers(1, 40))
def test_however_a_store_is_divided_the_findings_are_those_of_one_look(data, scene, deep, parts):
    _lose(data.draw, scene)
    for key in data.draw(st.lists(in_other_stores, max_size=2, unique=True)):
        scene.store.put(Key(key), b"another store's")
    expected = compare(scene.store, scene.head, deep=deep)

    found = executors(parts).run(VerifyJob(handle(scene.store), scene.head, deep=deep))

    assert told(found) == told(expected)
    found.close()


def test_what_others_have_as_their_directory_is_refused_also_if_nobody_indexed_them(small_parts):
    store = Bucket({"files/a": b"1", "files/a/b": b"2", "files/c": b"3", "files/c/~01J8XG4Q6V5T3N2M1K0H9G8F7A/d": b"4"})
    entries = {f"data/{number}": Entry(f"data/{number}", None, 1, None, None, None, 1) for number in range(40)}
    root = _tree(store, entries, "c0")
    scene = Scene(store, first_head(store="s", commit="c0", at=_at(0), by="me", root=root, tally=Tally()))
    job = VerifyJob(handle(store), scene.head, deep=False)

    found = LocalExecutor().run(job)

    assert len(job.parts(100)) > 3  # files/a and what lies in it are in different parts
    assert ([one.path for one in found.refused], found.unindexed) == (["files/a"], ["files/a/b", "files/c"])
    assert (found.leftovers, len(found.missing)) == (1, 40)
    assert told(found) == told(compare(store, scene.head, deep=False))  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [1, 20])
def test_names_between_an_object_and_what_lies_below_it_do_not_part_them(small_parts, wanted):
    store = Bucket(dict.fromkeys(["files/a", "files/a!", "files/a!/x", "files/a-b", "files/a/b", "files/a0"], b"1"))
    root = _tree(
        store, {f"data/{number}": Entry(f"data/{number}", None, 1, None, None, None, 1) for number in range(40)}, "c0"
    )
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=root, tally=Tally())

    found = ByWire(wanted).run(VerifyJob(handle(store), head, deep=False))

    assert [one.path for one in found.refused] == ["files/a", "files/a!"]
    assert found.unindexed == ["files/a!/x", "files/a-b", "files/a/b", "files/a0"]


def test_another_store_and_the_objects_of_pushes_are_not_divided(small_parts):
    push = PUSHES[0]
    pushed = [f"files/{letter}/~{push}/{number}" for letter in "abcdefgh" for number in range(10)]
    others = ["data/x/-/a", "data/x/.bayou/head.json", "data/x/b/c/d", f"data/x/e/~{push}/f", "data/x/.bayou-no/g"]
    store = Bucket(dict.fromkeys([*pushed, *others, "data/y/a", "data/z/.bayou", ".bayou/head.json"], b"1"))
    rows = [Entry(keys.parse_payload(key).path, push, 1, None, None, None, 1) for key in pushed]
    root = _tree(store, {row.path: row for row in rows}, "c0")
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=root, tally=Tally())
    job = VerifyJob(handle(store), head, deep=False)

    found = LocalExecutor(threads=20).run(job)

    directories = {str(section.part.directory) for part in job.parts(100) for section in part}
    assert {"data/x", "data/y", "files/a"} <= directories
    assert not [one for one in directories if one.startswith(("data/x/", "files/a/"))]
    assert (found.checked, found.missing, found.leftovers, found.unindexed) == (80, [], 0, ["data/y/a"])
    assert told(found) == told(compare(store, head, deep=False))  # type: ignore[arg-type]


def test_a_part_reads_only_the_leaves_that_can_hold_its_paths(small_parts):
    store = Bucket({f"data/{letter}/{number:03}": b"1" for letter in "abcdefgh" for number in range(50)})
    entries = {key: Entry(key, None, 1, None, one.meta.etag, None, 1) for key, one in sorted(store.objects.items())}
    root = _tree(store, entries, "c0")
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=root, tally=Tally())
    job = VerifyJob(handle(store), head, deep=False)

    sections = [section for part in job.parts(100) for section in part]

    assert sorted(str(one.part.directory) for one in sections) == [
        "None",
        "data",
        *(f"data/{one}" for one in "abcdefgh"),
    ]
    leaves = len({ref.node for one in sections for ref in one.leaves})
    assert sum(len(one.leaves) for one in sections) <= leaves + 2 * len(sections)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_parts")
@settings(suppress_health_check=[*HealthCheck])
@given(st.data(), scenes(), st.integers(0, 40) | st.just(5000), st.integers(1, 40))
def test_however_a_store_is_divided_the_garbage_is_that_of_one_look(data, scene, age, parts):
    store: Any = scene.store
    for key in data.draw(st.lists(in_other_stores, max_size=2, unique=True)):
        store.put(Key(key), b"another store's")
    before = 1_700_000_000_000 + age
    kept = gc_roots(store, scene.head, before)
    trash = IndexTree(StoreNodes(store), scene.head.trash)
    reference = SweepReference(store)
    newest = reference.list_store()
    expected = reference.find_garbage(kept, trash, before)
    there = set(store.objects)
    sweep = Sweep(executors(parts), handle(store), 1000)

    assert sweep.list_store() == newest
    late = store.put(Key(f"data/~{PUSHES[0]}/late"), b"after the listing")
    assert sweep.find_garbage(kept, trash, before) == expected
    sweep.delete()
    sweep.close()

    assert late is not None
    assert there - set(store.objects) == {meta.key for meta in reference.doomed}
    assert f"data/~{PUSHES[0]}/late" in store.objects  # T13: what was listed is fixed
    # V5: what an entry of the current index names is never garbage.
    rows = [row for ref in kept.current for row in StoreNodes(store).load(0, ref).rows]
    named = {row.key for row in rows if isinstance(row, Entry)}
    assert len({(row.key, row.path) for row in rows if isinstance(row, Entry)}) == len(rows)
    assert named & there <= set(store.objects)


def test_v5_what_a_row_names_by_its_key_is_kept_even_if_no_client_wrote_that_row():
    key = f"files/~{PUSHES[0]}/a"
    store = Bucket({key: b"1", f"files/~{PUSHES[1]}/a": b"2", ".bayou/head.json": b"head"})
    root = _tree(store, {key: Entry(key, None, 1, None, None, None, 1)}, "c0")
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=root, tally=Tally())
    before = 1_800_000_000_000
    sweep = Sweep(LocalExecutor(), handle(store), 1)

    sweep.list_store()
    sweep.find_garbage(gc_roots(store, head, before), IndexTree(StoreNodes(store), None), before)  # type: ignore[arg-type]
    sweep.delete()

    assert [one for one in store.objects if one.startswith("files/")] == [key]


@pytest.mark.parametrize("seconds", [None, 1e-9])
def test_an_object_may_be_read_for_as_long_as_the_command_has(tmp_path, seconds):
    """And not for the three minutes of a usual call: an object of a terabyte takes hours."""
    spec = StoreSpec.of(tmp_path.as_uri(), None, {})
    store = spec.open()
    store.put(Key("files/a"), b"a")
    entries = {"files/a": Entry("files/a", None, 1, None, None, None, 7)}
    head = first_head(store="s", commit="c0", at=_at(0), by="me", root=_tree(store, entries, "c0"), tally=Tally())
    deadline: Any = Deadline.after(3600) if seconds is None else _AlmostOver()
    job = VerifyJob(StoreHandle(store, lambda: spec, deadline), head, deep=True)
    parts = job.parts(1)
    kernel = pickle.loads(pickle.dumps(job))

    if seconds is None:
        assert [row.finding for row in kernel.run(parts[0])] == [LEARNED, CHECKED]
    else:
        with pytest.raises(DeadlinePassed):
            list(kernel.run(parts[0]))


class _AlmostOver:
    def remaining(self) -> float:
        return 1e-9
