"""What must never happen. Every write to the bucket is checked before it is made, every command when it ends."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bayou.core.clock import parse_ms
from bayou.core.errors import BayouError
from bayou.index import head as heads
from bayou.index import node_store
from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.index.node import Branch, Node, Ref, Root
from bayou.objectstore import keys
from bayou.packs.read import extract
from bayou.sync.plan.decision_table import same_object
from bayou.sync.plan.policy import version_dir
from bayou.sync.report import SyncReport
from tests.sync.simulation.bucket import Blob, Bucket
from tests.sync.simulation.client import Client


class Violation(AssertionError):
    """A property of the protocol does not hold."""


@dataclass(eq=False)
class Op:
    """The newest thing that a program did to one path of one clone. `content` is None for a delete."""

    number: int
    content: bytes | None
    head: int
    """How many heads there had been by then."""
    settled: bool = False
    """A commit of this clone has carried it."""
    loose: bool = False
    """The journal that named it is lost: it need not go up, but must not vanish."""

    @property
    def sha256(self) -> bytes | None:
        return None if self.content is None else hashlib.sha256(self.content).digest()


@dataclass(eq=False)
class Version:
    """One head that was current, from the bucket's time `since` on."""

    head: Head
    since: int
    entries: Mapping[str, Entry]
    keys: frozenset[str]
    """All that the head names."""
    readable: frozenset[str]
    """What a reader of its root needs."""
    etag: str | None = None

    def sha256(self, path: str) -> bytes | None:
        entry = self.entries.get(path)
        return entry.sha256 if entry is not None else None

    def push(self, path: str) -> str | None:
        entry = self.entries.get(path)
        return entry.push if entry is not None else None


@dataclass(eq=False)
class Oracle:
    """Knows what everybody did, and what the bucket held at every moment."""

    bucket: Bucket
    clients: dict[str, Client]
    versions: list[Version] = field(default_factory=list)
    ops: dict[tuple[str, str], Op] = field(default_factory=dict)
    written: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    deletes: set[tuple[str, str]] = field(default_factory=set)
    spent: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    """Of what was written, what a commit of this clone has carried since."""
    had: dict[str, set[bytes]] = field(default_factory=dict)
    """The hashes of all that a clone has ever had in its hands: what it wrote, and what it downloaded into its tree."""
    pushers: dict[str, str] = field(default_factory=dict)
    proofs: dict[str, int] = field(default_factory=dict)
    graces: dict[str, int] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    removed: dict[str, set[str]] = field(default_factory=dict)
    """What another program removed from the bucket before there was a head, and which clones had it: they keep it."""
    packed: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    """What each pack holds: a file's bytes in the pack, and the hash of its content."""
    number: int = 0
    _nodes: dict[str, Node] = field(default_factory=dict)
    _begun: dict[tuple[str, str], int] = field(default_factory=dict)
    _wiped: dict[str, int] = field(default_factory=dict)
    """How many heads there were when a client's tree was last wiped."""

    def begin_with(self, objects: Mapping[str, Blob]) -> None:
        """Take what is in the bucket for granted, and watch from here on."""
        found = objects.get(keys.HEAD)
        if found is not None:
            self.putting("somebody", keys.HEAD, found.data, None)
            self.put_done(keys.HEAD, found.meta.etag)

    # ---- what programs do ----

    def wrote(self, client: Client, path: str, content: bytes) -> None:
        self.number += 1
        self.ops[client.name, path] = op = Op(self.number, content, len(self.versions))
        assert op.sha256 is not None
        self.written.setdefault((client.name, path), set()).add(op.sha256)
        self.spent.get((client.name, path), set()).discard(op.sha256)
        self.had.setdefault(client.name, set()).add(op.sha256)

    def deleted(self, client: Client, path: str) -> None:
        self.number += 1
        self.ops[client.name, path] = Op(self.number, None, len(self.versions))
        self.deletes.add((client.name, path))

    def wiped(self, client: Client) -> None:
        """The files are gone: what was not committed is lost, by a person's hand.

        So is what was kept in place of a delete that met a change over there: no row tells of that delete any more. (A
        mark does not: it says that somebody may write there.)
        """
        self._wiped[client.name] = len(self.versions)
        rows = client.journaled(marks=False)
        for (name, path), op in list(self.ops.items()):
            over = op.content is not None or path not in rows
            if name == client.name and over and not op.settled:
                del self.ops[name, path]

    def forgot(self, client: Client) -> None:
        """The state is gone: deletes are forgotten, writes are files that nobody names."""
        for (name, path), op in list(self.ops.items()):
            if name == client.name:
                if op.content is None:
                    del self.ops[name, path]
                else:
                    op.loose = True

    # ---- what clients do to the bucket ----

    def downloaded(self, who: str, key: str, data: bytes) -> None:
        had = self.had.setdefault(who, set())
        had.add(hashlib.sha256(data).digest())
        had.update(digest for stored, digest in self.packed.get(key, ()) if stored in data)

    def sending_head(self, who: str, data: bytes, etag: str | None) -> None:
        """Check that whoever commits knew what the commit replaces, and brings only what is new here."""
        new = heads.parse_head(data, "memory://sim")
        if new.commit in self.checked:
            return
        self.checked.add(new.commit)
        before = self.versions[-1] if self.versions else None
        if before is None or before.etag != etag:
            return  # the first; or one that comes too late, and will be refused
        after = self._entries(new.root)
        changed = {p for p in before.entries.keys() | after.keys() if before.entries.get(p) != after.get(p)}
        if not changed:
            return
        base = self.clients[who].base(changed)
        for path in changed:
            self._legitimate(who, path, base.get(path), before.entries.get(path), after.get(path))

    def _legitimate(self, who: str, path: str, base: Entry | None, old: Entry | None, new: Entry | None) -> None:
        client = self.clients[who]
        told = f"{who} commits {path}: {_show(old)} becomes {_show(new)}, and base has {_show(base)}"
        if old is not None and new is not None and new.same_content(old):
            return  # P4: only the place has changed, which whoever has read the bytes may do
        if old is not None and new is not None and old.push is not None and new.sha256 == old.sha256:
            raise Violation(f"the same bytes under another push: {told}")
        # Base must say so, and it must be true: such bytes were in this tree once.
        knew = (
            old is not None
            and base is not None
            and same_object(base, old)  # P5: the same bytes of another push are another file
            and hashlib.sha256(self.content(old)).digest() in self.had.get(who, ())
        )
        if new is None:
            if not knew:
                raise Violation(f"a delete of what was not known: {told}")
            if (who, path) not in self.deletes:
                raise Violation(f"a delete that nobody asked for: {told}")
            return
        if new.push is None:
            return  # adopted, or its hash was learnt
        if old is not None:
            if new.sha256 != old.sha256 and not knew:
                raise Violation(f"an update was lost: {told}")
            if new.sha256 != old.sha256 and new.sha256 not in self.written.get((who, path), ()):
                raise Violation(f"bytes that were not written there: {told}")
            return
        fresh = self.written.get((who, path), set()) - self.spent.get((who, path), set())
        if new.sha256 in fresh:
            return
        if path in self.removed:
            return  # a mark of everything may name it before it is listed as untracked
        if client.lost_state and (client.marked_since_loss or path in client.begun_since_loss):
            return  # somebody said that everything here is to go up, or this path
        raise Violation(f"a deleted path comes back: {told}")

    def putting(self, who: str, key: str, data: bytes, old: Blob | None) -> None:
        if key == keys.HEAD:
            self._new_head(who, heads.parse_head(data, "memory://sim"))
            return
        if old is not None and old.data != data and not key.startswith(f"{keys.PROBES}/"):
            raise Violation(f"{key} is written a second time, with other bytes")
        if keys.parse_pack(key) is not None:
            self.packed[key] = _members(data)
        if key.startswith(f"{keys.PROBES}/"):
            self.proofs[who] = self.bucket.clock

    def put_done(self, key: str, etag: str | None) -> None:
        if key == keys.HEAD:
            self.versions[-1].etag = etag

    def deleting(self, who: str, key: str) -> None:
        """Check that nothing is deleted that the head names, or a root that was current within the grace."""
        if not self.versions:
            return
        if key in self.versions[-1].keys:
            raise Violation(f"{who} deletes {key}, which the head names")
        horizon = self.proofs.get(who, 0) - self.graces.get(who, 0)
        until = self.bucket.clock
        for version in reversed(self.versions):
            if until < horizon:
                break
            # Where an earlier collection, of a shorter grace, has taken nodes, nobody can read that root anyway.
            if key in version.readable and self._readable(version):
                raise Violation(f"{who} deletes {key}, which a root names that was current within the grace")
            until = parse_ms(version.head.at)

    def _readable(self, version: Version) -> bool:
        return all(key in self.bucket.objects for key in version.readable if key.startswith(f"{keys.NODES}/"))

    def _new_head(self, who: str, head: Head) -> None:
        before = self.versions[-1] if self.versions else None
        if before is not None:
            claim = (head.parent, head.seq, head.store)
            truth = (before.head.commit, before.head.seq + 1, before.head.store)
            if claim != truth:
                raise Violation(f"{who}'s head follows {claim}, and the one before it is {truth}")
        entries = self._entries(head.root)
        trash = self._entries(head.trash)
        for path, entry in entries.items():
            self._has_bytes(who, entry)
            if path in trash and trash[path].key == entry.key:
                raise Violation(f"{path} is in the index and in the trash, with one object")
        self._whole_units(who, entries)
        for entry in entries.values():
            if entry.push is not None:
                self.pushers.setdefault(entry.push, who)  # a compaction later keeps it
        readable = frozenset({entry.key for entry in entries.values()} | self._nodes_of(head.root))
        named = readable | self._nodes_of(head.trash) | self._pages(head)
        self.versions.append(Version(head, self.bucket.clock, entries, named, readable))
        for path, entry in entries.items():
            if entry.sha256 is not None and (before is None or before.sha256(path) != entry.sha256):
                self.spent.setdefault((who, path), set()).add(entry.sha256)
            op = self.ops.get((who, path))
            if op is not None and op.content is not None and op.sha256 == entry.sha256:
                op.settled = True
        if before is not None:
            for path in before.entries.keys() - entries.keys():
                self.deletes.discard((who, path))

    def _has_bytes(self, who: str, entry: Entry) -> None:
        blob = self.bucket.objects.get(entry.key)
        if blob is None:
            raise Violation(f"{who} commits {entry.path}, and there is no {entry.key}")
        if entry.sha256 is None:
            if blob.meta.etag != entry.etag:
                raise Violation(f"{who} commits {entry.path}, and {entry.key} is another object by now")
        elif entry.refusal() is not None:
            raise Violation(f"{who} commits {entry.path}: {entry.refusal()}")
        elif hashlib.sha256(self.content(entry)).digest() != entry.sha256:
            raise Violation(f"{who} commits {entry.path}, and {entry.key} has other bytes")

    def content(self, entry: Entry) -> bytes:
        """Return the bytes of an entry, wherever they are; none if its pack has others at that place."""
        data = self.bucket.objects[entry.key].data
        if entry.pack is None:
            return data
        assert entry.offset is not None
        assert entry.stored is not None
        return extract(entry, data[entry.offset : entry.offset + entry.stored]) or b""

    def _whole_units(self, who: str, entries: Mapping[str, Entry]) -> None:
        """Programs here write all files of a version at once, with one tag: no head may tear them apart."""
        tags: dict[str, dict[str, bytes]] = {}
        for path, entry in entries.items():
            unit = version_dir(path)
            if unit is not None and entry.push is not None:
                tags.setdefault(unit, {})[path] = self.content(entry).split(b" ")[0]
        for unit, files in tags.items():
            whole = {f"{unit}/raw", f"{unit}/metadata.yaml"} <= files.keys()
            if not whole or len(set(files.values())) != 1:
                raise Violation(f"{who}'s head tears {unit} apart: {files}")

    def _pages(self, head: Head) -> set[str]:
        """Return the keys of the log's pages, which must go back to the first commit without a gap."""
        found: set[str] = set()
        page, below = head.older, head.log[0].seq
        while page is not None:
            key = keys.log_page(page)
            blob = self.bucket.objects.get(key)
            if blob is None:
                raise Violation(f"the log names page {page}, and there is none")
            document = json.loads(blob.data)
            if document["rows"][-1]["seq"] != below - 1:
                raise Violation(f"page {page} of the log ends at {document['rows'][-1]['seq']}, and {below} follows")
            found.add(key)
            page, below = document["older"], document["rows"][0]["seq"]
        if below != 1:
            raise Violation(f"the log begins at {below}")
        return found

    # ---- when a command has ended ----

    def check_tree(self, client: Client) -> None:
        """Nothing that a program wrote is gone before a commit carries it."""
        for (name, path), op in self.ops.items():
            if name != client.name or op.content is None or op.settled:
                continue
            if client.content(path) != op.content and not self._safe(client, path, op):
                raise Violation(f"{name} had {path} = {op.content!r}; the tree has {client.content(path)!r} by now")

    def begun(self, client: Client, path: str) -> None:
        """A program has begun to write and died: whoever saw it alive waits for what it may write."""
        self._begun[client.name, path] = self.number

    def told(self, client: Client, report: SyncReport, before: int) -> None:
        """A delete of which a report says that the store's change was kept is over, whatever rows are still there; one
        that came during the run is over if no row says that the run has not seen it."""
        rows = client.journaled(marks=False)
        for (name, path), op in self.ops.items():
            if name == client.name and op.content is None and (op.number <= before or path not in rows):
                kept = f"{path} was deleted here and changed in the store: it was kept"
                op.settled = op.settled or (kept in report.warnings and client.content(path) is not None)

    def acknowledged(self, client: Client, report: SyncReport, before: int) -> None:
        """A push has ended well: what was there when it began is in the store."""
        # Of an object that somebody collects meanwhile, whoever is about to read it says that it is missing.
        failed = {one.path for one in report.failed} | set(report.missing)
        told_unfinished = any("kept changing meanwhile" in text for text in report.warnings)
        waiting = {text.partition(": ")[0] for text in report.warnings if "of this version not pushed either" in text}
        for (name, path), op in self.ops.items():
            if name != client.name or op.settled or path in failed:
                continue
            if op.number > before:
                # Not promised yet; but a delete that met a change over there is over, should this run have seen it.
                there = client.content(path) is not None
                if op.content is None and there and path not in client.journaled(marks=False):
                    op.settled = True
                continue
            if version_dir(path) in waiting and path in client.journaled():
                continue  # the report says so
            if op.content is None:
                since = self.versions[max(0, op.head - 1) :]
                gone = not since or any(path not in one.entries for one in since)
                writes = client.writes(path) or self._begun.get((name, path), -1) >= before
                if (told_unfinished or writes) and path in client.journaled():
                    continue
                if not gone and client.content(path) is None:
                    raise Violation(f"{name} deleted {path}; the push says nothing, and it is still there")
                op.settled = True
            elif told_unfinished and path in client.journaled():
                continue
            elif not op.loose and not self._safe(client, path, op):
                where = "in the journal still" if path in client.journaled() else "in no journal"
                raise Violation(f"{name} pushed {path} = {op.content!r} with success; it is in no head, and {where}")
        for conflict in report.conflicts:
            self._not_with_oneself(client, conflict.path, before)

    def _not_with_oneself(self, client: Client, path: str, before: int) -> None:
        op = self.ops.get((client.name, path))
        if client.lost_state or version_dir(path) is not None or (op is not None and op.number > before):
            return
        entry = self.versions[-1].entries.get(path)
        if entry is None or entry.push is None or self.pushers.get(entry.push) != client.name:
            return
        wiped = self._wiped.get(client.name)
        if wiped is not None and all(one.push(path) != entry.push for one in self.versions[:wiped]):
            # Its swap arrived after its tree was wiped. By then a pull may have brought back the older file, and what
            # has been written since is a change of that one.
            return
        raise Violation(f"{client.name} is in conflict with itself about {path}")

    def _safe(self, client: Client, path: str, op: Op) -> bool:
        """Whether a head has had these bytes (before: then to write them again was no change), or a copy is kept."""
        if any(one.sha256(path) == op.sha256 for one in self.versions):
            return True
        return op.content in client.kept(path)

    def superseded(self, path: str, content: bytes, history: Sequence[Version]) -> bool:
        """Whether a head of this history had these bytes at this path, and a later one has not."""
        digest = hashlib.sha256(content).digest()
        old = found(path) == content
        had = [one.sha256(path) == digest or (old and _is_found(one.entries.get(path))) for one in history]
        return True in had and not all(had[had.index(True) :])

    def check_removed(self, client: Client) -> None:
        """What no head ever had, and no program here has touched, is still here."""
        for path, names in self.removed.items():
            touched = (client.name, path) in self.ops or any(path in one.entries for one in self.versions)
            if client.name in names and not touched and client.content(path) != found(path):
                raise Violation(f"{client.name} had {path} from the bucket; nobody deleted it, and it is gone")

    def check_all(self) -> None:
        """Every entry of the head has its bytes, at this moment."""
        if self.versions:
            for entry in self.versions[-1].entries.values():
                self._has_bytes("somebody", entry)
            for key in self.versions[-1].keys:
                if key not in self.bucket.objects:
                    raise Violation(f"the head names {key}, and it is gone")

    # ---- reading the bucket ----

    def _entries(self, root: Root | None) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for node in self._walk(root):
            if not isinstance(node, Branch):
                found.update({entry.path: entry for entry in node.rows})
        return found

    def _nodes_of(self, root: Root | None) -> set[str]:
        if root is None:
            return set()
        names: list[Ref] = [root]
        for node in self._walk(root):
            if isinstance(node, Branch):
                names += node.rows
        return {keys.node(ref.node) for ref in names}

    def _walk(self, root: Root | None) -> list[Node]:
        todo: list[tuple[int, Ref]] = [] if root is None else [(root.level, root)]
        found: list[Node] = []
        while todo:
            level, ref = todo.pop()
            node = self._load(level, ref)
            found.append(node)
            if isinstance(node, Branch):
                todo += [(level - 1, row) for row in node.rows]
        return found

    def _load(self, level: int, ref: Ref) -> Node:
        blob = self.bucket.objects.get(keys.node(ref.node))
        if blob is None:
            raise Violation(f"a head names the node {ref.node}, and there is none")
        if ref.node not in self._nodes:
            try:
                self._nodes[ref.node] = node_store.decode(blob.data, level, ref)
            except BayouError as error:
                raise Violation(f"a head names a node that is damaged: {error}") from error
        return self._nodes[ref.node]


def _members(data: bytes) -> list[tuple[bytes, bytes]]:
    """Read a pack as any ZIP tool does, and return its files: each one's bytes in the pack, and its hash."""
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename.encode())
            found.append((data[start : start + info.compress_size], hashlib.sha256(archive.read(info)).digest()))
    return found[:-1]  # the last is the list of the others


def found(path: str) -> bytes:
    """Return what a store had at a path before anybody synced with it."""
    return f"found {path}".encode()


def _is_found(entry: Entry | None) -> bool:
    return entry is not None and entry.push is None


def _show(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    return f"{entry.sha256.hex()[:6] if entry.sha256 else entry.etag}/{(entry.push or 'found')[-4:]}"
