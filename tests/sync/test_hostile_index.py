"""Issue 17, items 7 and 9: an index that was made to do harm. Its nodes are proved by digest, and their rows lie."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core import limits, paths
from bayou.core.clock import now
from bayou.core.errors import HeadCorrupt, IndexDamaged, PathRefused, SyncError
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import advance, encode_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store, keys
from tests import api
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import commit_rows, entries_of, head_of

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"


def row(path: str, **fields: Any) -> Entry:
    told: dict[str, Any] = {"push": PUSH, "size": 1, "sha256": bytes(32), "etag": "e", "version": None, "modified": 0}
    return Entry(path, **{**told, **fields})


NAMELESS = {
    "NUL": row("data/a\0b"),
    "newline": row("files/a\nb"),
    "up and out": row("data/../../x"),
    "absolute": row("/abs/x"),
    "backslash": row("files\\x"),
    "internal": row(".bayou/head.json", push=None),
    "internal below a root": row("data/.bayou/head.json", push=None),
    "another application": row("otherapp/config.json", push=None),
    "a push's directory": row(f"data/~{PUSH}/x"),
    "right to left": row("files/\u202egpj.exe/\x9b"),
    "too long": row("files/" + "x" * 900),
    "push that leads elsewhere": row("files/push1", push="../x"),
    "empty push": row("files/push2", push=""),
    "long push": row("files/push3", push="A" * 300),
}
NAMED = {
    "2**62 bytes": row("files/huge", size=2**62),
    "negative": row("files/negative", size=-1),
    "no time": row("files/time", modified=2**62),
    "etag of many lines": row("files/etag", etag="a\r\nx: y"),
    "long etag": row("files/etag2", etag="e" * 5000),
}
PACK = f"{PUSH}-1000"
PACKED: dict[str, Any] = {"etag": None, "pack": PACK, "offset": 40, "stored": 1, "method": 0}
MISPLACED = {
    "pack that leads elsewhere": row("files/p1", **PACKED | {"pack": f"../{PACK}"}),
    "pack without a size": row("files/p2", **PACKED | {"pack": PUSH}),
    "a part of no pack": row("files/p3", offset=1, stored=1, method=0),
    "beyond the pack": row("files/p4", **PACKED | {"offset": 1000}),
    "before the pack": row("files/p5", **PACKED | {"offset": -1}),
    "without an offset": row("files/p6", **PACKED | {"offset": None}),
    "unknown method": row("files/p7", **PACKED | {"method": 99}),
    "stored in fewer bytes": row("files/p8", size=2, **PACKED),
    "a bomb": row("files/p9", size=2**40, **PACKED | {"method": 8}),
    "deflated to more": row("files/p10", **PACKED | {"method": 8, "stored": 2}),
    "in a pack without a hash": row("files/p11", sha256=None, **PACKED),
    "discovered in a pack": row("files/p12", push=None, **PACKED),
    "in two places": row("files/p13", at=PUSH, **PACKED),
    "at a place that leads elsewhere": row("files/p14", at="../x"),
}
HOSTILE = NAMELESS | NAMED
BY_PATH = {one.path: one for one in HOSTILE.values()}


pytestmark = pytest.mark.usefixtures("quick_probe")


@pytest.fixture
def pair(team: Team) -> tuple[Clone, Clone]:
    """A, which has pushed a file, and B, which knows the store from before the harm."""
    a, b = team.clone("a"), team.clone("b")
    a.write("files/good", "1")
    a.sync()
    b.sync()
    return a, b


def put_trash(store: Store, *rows: Entry) -> None:
    seen, number = head_of(store), ulid()
    sink = StoreSink(store, number)
    trash = merge(IndexTree(StoreNodes(store), seen.head.trash), {one.path: one for one in rows}, sink)
    sink.flush()
    head, page = advance(
        seen.head, commit=number, at=now(), by="a stranger", root=seen.head.root, trash=trash, tally=Tally()
    )
    swap_head(store, head, seen.match, page)


def trash_of(store: Store) -> set[str]:
    return {entry.path for entry in scan(IndexTree(StoreNodes(store), head_of(store).head.trash))}


@pytest.mark.parametrize("bad", (HOSTILE | MISPLACED).values(), ids=HOSTILE | MISPLACED)
def test_17_9_one_bad_row_is_refused_by_name_and_the_rest_of_the_store_works(
    team: Team, pair: tuple[Clone, Clone], bad: Entry
) -> None:
    a, b = pair
    before = {path for path in team.root.rglob("*") if team.root / "store" not in path.parents}
    commit_rows(team.store(), {bad.path: bad})
    a.write("files/more", "2")

    pushed, pulled = a.sync(), b.sync()

    assert [one.path for one in pulled.refused] == [bad.path]
    assert b.files["files/more"] == b"2", "what has nothing to do with it arrives"
    assert pushed.commit is not None
    assert bad.path in entries_of(team.store()), "a commit carries the row along unchanged"
    after = {path for path in team.root.rglob("*") if team.root / "store" not in path.parents}
    made = {path.name for path in after - before if "tree" in path.parts}
    assert made <= {"more", "good"}
    assert b.sync().engine == "fast", "nothing is decided about it again and again"


@pytest.mark.parametrize("bad", (HOSTILE | MISPLACED).values(), ids=HOSTILE | MISPLACED)
def test_17_9_verify_reports_a_bad_row_and_forget_takes_it_as_it_is_printed(
    team: Team, pair: tuple[Clone, Clone], bad: Entry
) -> None:
    _, b = pair
    commit_rows(team.store(), {bad.path: bad})

    found = api.verify(b.repo, deep=False, repair=False)

    assert not found.ok
    assert [one.path for one in found.unsafe] == [paths.escape(bad.path)]
    assert found.unsafe[0].path.isprintable()
    forgotten = api.verify(b.repo, deep=False, repair=False, forget=[found.unsafe[0].path])
    assert (forgotten.ok, forgotten.unsafe) == (True, [])
    assert set(entries_of(team.store())) == {"files/good"}
    assert api.verify(b.repo, deep=True, repair=False).ok
    b.sync()
    assert set(b.files) == {"files/good"}


def test_17_9_repair_drops_rows_that_can_name_no_object_and_keeps_the_others(
    team: Team, pair: tuple[Clone, Clone]
) -> None:
    a, _ = pair
    commit_rows(team.store(), dict(BY_PATH))

    found = api.verify(a.repo, deep=True, repair=True)

    assert {one.path for one in found.unsafe} == {one.path for one in NAMED.values()}
    assert set(entries_of(team.store())) == {"files/good", *(one.path for one in NAMED.values())}
    assert not found.ok


def test_17_9_a_bad_row_gives_way_to_what_is_written_or_deleted_here(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, b = pair
    for bad in (row("files/good", size=2**62), row("files/good", push="../x"), row("files/good", modified=-(2**62))):
        commit_rows(team.store(), {"files/good": bad})
        b.sync()
        a.write("files/good", ulid())
        assert a.sync().pushed.files == 1
        b.sync()
        assert b.files["files/good"] == a.files["files/good"]
    commit_rows(team.store(), {"files/good": row("files/good", size=2**62)})
    b.sync()
    b.delete("files/good")
    b.sync()
    assert entries_of(team.store()) == {}


def test_17_9_nobody_fetches_by_a_bad_row_on_request_either(team: Team, pair: tuple[Clone, Clone]) -> None:
    _, b = pair
    commit_rows(team.store(), {"files/huge": row("files/huge", size=2**62)})
    b.sync()

    with pytest.raises(SyncError, match="files/huge"):
        api.hydrate(b.repo, "files/huge")


def test_17_9_a_replica_gets_what_is_good_and_names_the_rest(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, _ = pair
    commit_rows(team.store(), dict(BY_PATH))
    (team.root / "copy").mkdir()

    made = api.replicate(a.repo, (team.root / "copy").as_uri())

    assert {one.path for one in made.failed} == set(BY_PATH)
    assert made.copied == 1


def test_17_9_a_collection_works_over_bad_rows(team: Team, pair: tuple[Clone, Clone]) -> None:
    a, _ = pair
    commit_rows(team.store(), dict(BY_PATH))
    before = team.payload_keys() | team.packs()

    api.collect(a.repo, dry_run=False, grace_s=0)

    assert team.payload_keys() | team.packs() == before


def test_17_9_forget_says_so_where_there_is_no_such_row(pair: tuple[Clone, Clone]) -> None:
    with pytest.raises(PathRefused):
        api.verify(pair[0].repo, deep=False, repair=False, forget=["data/a\\x00b"])


def test_17_9_the_command_exits_4_and_its_help_names_the_escaped_form(team: Team, pair: tuple[Clone, Clone]) -> None:
    commit_rows(team.store(), {"data/a\0b": row("data/a\0b")})

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bayou", "datastore", "verify", *arguments]
        return subprocess.run(command, cwd=pair[0].repo.root, capture_output=True, text=True, timeout=60, check=False)

    told = run("--json")
    assert told.returncode == IndexDamaged.exit_code
    assert json.loads(told.stdout)["unsafe"] == [{"path": "data/a\\x00b", "reason": "a control character"}]
    assert run("--forget", "data/a\\x00b").returncode == 0
    assert "\\x00" in run("--help").stdout


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (limits.HEAD_BYTES + 1),
        b"[" * 100_000,
        b'{"format":2,"seq":1' + b"0" * 5000 + b"}",
        b'{"format":2,"a":"\xff"}',
        b'{"format":2,"store":"\\ud800"}',
        b'{"root":{' * 200_000,
        b"{}" * 1_000_000,
        b"",
    ],
    ids=["too large", "deep", "digits", "not UTF-8", "surrogate", "open braces", "braces", "empty"],
)
def test_17_9_a_head_that_is_made_to_do_harm_is_refused_by_name_and_rebuilt(
    team: Team, pair: tuple[Clone, Clone], data: bytes
) -> None:
    a, b = pair
    team.store().put(keys.HEAD, data)

    with pytest.raises(HeadCorrupt, match="the head of"):
        b.sync()
    api.verify(a.repo, deep=False, repair=True)

    assert set(entries_of(team.store())) == {"files/good"}
    b.sync()
    assert api.verify(b.repo, deep=True, repair=False).ok


@pytest.mark.parametrize(
    "harm",
    [
        {"seq": 2**53 + 1},
        {"seq": 1.0},
        {"seq": 10**400},
        {"seq": True},
        {"at": "0000-01-01T00:00:00.000Z"},
        {"at": "2026-13-45T99:99:99.000Z"},
        {"at": 5},
        {"commit": "../../x"},
        {"by": "x" * 100_000},
        {"gc": {"count": -1, "before": None}},
        {"gc": {"count": 2**80, "before": None}},
        {"older": "../x"},
        {"log": []},
        {"log": {}},
        {"root": {"node": "../head", "digest": "00", "level": 0, "entries": 1, "bytes": 1}},
        {"root": 7},
    ],
    ids=str,
)
def test_17_9_a_head_with_a_field_out_of_range_is_refused_by_name_and_rebuilt(
    team: Team, pair: tuple[Clone, Clone], harm: dict[str, Any]
) -> None:
    a, b = pair
    whole = json.loads(encode_head(head_of(team.store()).head))
    sys.set_int_max_str_digits(0)
    try:
        data = json.dumps(whole | harm).encode()
    finally:
        sys.set_int_max_str_digits(4300)
    team.store().put(keys.HEAD, data)

    with pytest.raises(HeadCorrupt):
        b.sync()
    assert not b.status().healthy
    api.verify(a.repo, deep=False, repair=True)

    assert set(entries_of(team.store())) == {"files/good"}
    assert head_of(team.store()).head.seq < 1000
    b.sync()


@pytest.mark.parametrize("older", [("p1",), ("p1", "p2")], ids=["itself", "a circle of two"])
def test_17_9_pages_of_the_log_that_go_round_in_circles_are_damage_and_are_left_out_by_repair(
    team: Team, pair: tuple[Clone, Clone], older: tuple[str, ...]
) -> None:
    a, b = pair
    seen = head_of(team.store())
    first = seen.head.log[0]
    for at, page in enumerate(older):
        document = {"id": page, "older": older[(at + 1) % len(older)], "rows": [replace(first, seq=0).document()]}
        team.store().put(keys.log_page(page), json.dumps(document).encode())
    team.store().put(keys.HEAD, encode_head(replace(seen.head, older=older[0])))

    found = api.verify(b.repo, deep=False, repair=False)
    assert any("page" in damage for damage in found.damaged)
    with pytest.raises(IndexDamaged, match="page"):
        api.collect(a.repo, dry_run=False, grace_s=0)
    with pytest.raises(IndexDamaged, match="page"):
        api.log(a.repo, 1000)
    assert api.verify(a.repo, deep=False, repair=True).damaged == []
    api.collect(a.repo, dry_run=False, grace_s=0)
    b.sync()


@pytest.mark.usefixtures("loose_objects")
def test_17_7_a_collection_deletes_from_trash_only_what_is_this_stores(team: Team) -> None:
    a, other = team.clone("a"), team.clone("other", namespace="ns")
    place = team.root / "store"
    mine = {"otherapp/config.json": "1", "files/found": "2", "files/untagged": "3", "data/x/y/1/1/raw": "4"}
    for path, text in mine.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    a.sync()
    a.write("files/good", "1")
    a.sync()
    other.write("files/theirs", "1")
    other.sync()
    store = team.store()
    listed = set(team.keys())
    pushed = next(key for key in listed if "~" in key and key.startswith("files/"))
    named = [
        *("otherapp/config.json", "ns/.bayou/head.json", ".bayou/head.json", pushed),
        *(key for key in listed if key.startswith((".bayou/nodes", "ns/files", "ns/.bayou/nodes"))),
        *("../x", "/etc/passwd", "data/a\0b", "files"),
    ]
    tags = {meta.key: meta.etag for page in store.list() for meta in page}
    rows = [row(path, push=None, etag=tags.get(keys.as_listed(path), "e")) for path in named]
    untagged = row("files/untagged", push=None, etag=None)
    pushed_path = keys.parse_payload(pushed)
    commit_rows(store, {"files/untagged": None, "files/found": None})
    put_trash(store, *rows, untagged, row(pushed_path.path, push=pushed_path.push, etag=tags[keys.as_listed(pushed)]))
    put_trash(store, row("files/found", push=None, etag=tags[keys.as_listed("files/found")]))
    before = set(team.keys())

    dry = api.collect(a.repo, dry_run=True, grace_s=0)
    made = api.collect(a.repo, dry_run=False, grace_s=0)

    gone = {key for key in before - set(team.keys()) if not key.startswith(".bayou/")}
    assert gone == {"files/found"}, "only the discovered object that had left the index"
    assert (dry.trash_deleted, made.trash_deleted) == (1, 1)
    assert [f"{len(named) + 2} rows" in warning and "left alone" in warning for warning in made.warnings] == [True]
    found = api.verify(a.repo, deep=False, repair=False)
    assert {paths.unescape(one.path) for one in found.unsafe} >= {*named, "files/untagged", pushed_path.path}
    assert not found.ok
    assert api.verify(a.repo, deep=False, repair=True).unsafe == []
    assert trash_of(store) == set()
    assert {"otherapp/config.json", "files/untagged", pushed} <= set(team.keys()), "the objects stay"
    assert api.collect(a.repo, dry_run=False, grace_s=0).warnings == []
    other.sync()


@pytest.mark.usefixtures("loose_objects")
def test_17_7_a_store_inside_a_payload_root_is_not_collected_from_outside(team: Team) -> None:
    a = team.clone("a")
    a.write("files/good", "1")
    a.sync()
    inner = Team(team.root / "inner", f"{team.url}/data/x", {})
    (team.root / "inner").mkdir()
    (team.root / "store/data/x").mkdir(parents=True)
    b = inner.clone("b")
    b.write("files/theirs", "1")
    b.sync()
    theirs = set(inner.keys())
    path = next(f"data/x/{key}" for key in theirs if key.startswith("files/"))
    tag = next(meta.etag for page in team.store().list() for meta in page if meta.key == path)
    parsed = keys.parse_payload(path)
    put_trash(team.store(), row(parsed.path, push=None, etag=tag))

    api.collect(a.repo, dry_run=False, grace_s=0)

    assert set(inner.keys()) >= theirs


def test_17_7_a_key_that_bayou_does_not_make_is_no_garbage(team: Team, pair: tuple[Clone, Clone]) -> None:
    place = team.root / "store"
    strange = [
        ".bayou/log/not a page.json",
        ".bayou/log/a/b.json",
        ".bayou/probe/mine.txt",
        ".bayou/probe/x/y",
        ".bayou/other/thing",
        f"otherapp/~{PUSH}/x",
        f"data/_index/~{PUSH}/x",
    ]
    for key in strange:
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_text("1")

    api.collect(pair[0].repo, dry_run=False, grace_s=0)
    api.verify(pair[0].repo, deep=True, repair=True)

    assert set(strange) <= set(team.keys())


def test_17_9_an_escaped_path_reads_back() -> None:
    for path in ("files/a\0b", "a\\b", "a\\x00b", "é\u202e\u2028", "\U000e0001", "plain/näme", "\x9b\x7f"):
        assert paths.unescape(paths.escape(path)) == path
        assert paths.escape(path).isprintable()
