"""Discovery as a job of `engine.job`: list a store that has no head, and yield the entries of its payload in order.

The parts are directories of the store. A worker lists its directories, judges each key by the rules of
`index.discovery`, and writes nothing (V15). The driver sorts the verdicts by path in a temporary file: neither the keys
of a part nor the parts are in the order of paths, since a directory without the subdirectories that were split off is
no range of paths. The caller builds the tree from the sorted entries, so no process ever holds all of them.

Some rules need the whole store, and the driver applies them:

- A directory that has `.bayou/` is another store, and a listing may name that directory's payload before the key that
  shows this.
- An object of a push, a page of the log, or a pack means that there is, or was, a head (P9).
- An object that has other payload below its key is in the way, and has no place in a tree of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from bayou.core import activity
from bayou.core.iterators import batched
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.local import LocalExecutor
from bayou.engine.parts import StorePart, divide, groups, objects
from bayou.engine.select import LARGE, SCAN, Engines
from bayou.engine.spool import SortedSpool, key_bytes, key_text
from bayou.index.discovery import (
    IN_THE_WAY,
    OF_ANOTHER_SYSTEM,
    RefusedKey,
    folder_markers,
    head_lost,
    in_payload,
    nested_store,
    parents,
    proves_head,
    refusal,
)
from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta

MOST_REFUSED = 1000
"""Refused keys that a discovery lists; of more, it has only the number."""

_PROOF, _PUSHED, _REFUSED, _PAYLOAD, _OTHER_STORE, _IGNORED = range(6)
"""The kinds of verdict on a key: it shows that there is, or was, a head; an object of a push; no payload, for a reason;
payload; a directory that is another store; keys that are only counted (`size` is their number). The driver sorts by
these numbers first, so that it finds a lost head before anything else."""

_BATCH = 2000
"""Objects whose existence is checked together."""


class TooManyObjects(Exception):
    """The store has more objects than the limit of a listing."""


class Verdict(NamedTuple):
    """A row of the job: a listed object, and its `kind`. A tuple, since a listing makes very many."""

    kind: int
    key: str = ""
    size: int = 0
    etag: str | None = None
    version: str | None = None
    modified: int = 0
    reason: str | None = None


class Discovery:
    """The result of a discovery; its entries are in a temporary file until this is closed.

    `refused` are the first of the refused keys, `refusals` is their number in all; `ignored` is the number of other
    keys that are no payload.
    """

    def __init__(self, verdicts: Iterable[Verdict], store: StoreHandle) -> None:
        """Take all verdicts of a listing; raise `HeadLost`, or `AlreadyExists` if the store has a head by now."""
        self.ignored = 0
        self.refused: Sequence[RefusedKey] = ()
        self.refusals = 0
        self._other_stores: set[str] = set()
        self._spool = SortedSpool(3)
        self._in_the_way = SortedSpool(1)
        try:
            self._spool.add(self._rows(verdicts))
            self._judge(store)
        except BaseException:
            self.close()
            raise

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in the order of their paths; may be called again. Their hashes are unknown."""
        in_the_way = (path for (path,) in self._in_the_way)
        skipped, last = next(in_the_way, None), None
        for kind, path, size, etag, version, modified, _ in self._spool:
            # A listing may have an object and a "folder" under one key: the larger, which comes first, is the object.
            if kind != _PAYLOAD or path == last or self._is_in_another_store(path):
                continue
            last = path
            if path == skipped:
                skipped = next(in_the_way, None)
            else:
                yield Entry(key_text(path), None, -size, None, etag, version, modified)

    def close(self) -> None:
        self._spool.close()
        self._in_the_way.close()

    def _rows(self, verdicts: Iterable[Verdict]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows for the temporary file; count ignored keys, and collect other stores."""
        for kind, key, size, etag, version, modified, reason in verdicts:
            if kind == _OTHER_STORE:
                self._other_stores.add(key)
            elif kind == _IGNORED:
                self.ignored += size
            else:
                yield kind, key_bytes(key), -size, etag, version, modified, reason

    def _judge(self, store: StoreHandle) -> None:
        """Apply the rules that need the whole store: lost heads, other stores, and objects that are in the way."""
        refused: list[RefusedKey] = []
        above: list[bytes] = []  # payload paths that the current path begins with, the longest last
        for kind, key, *_, reason in self._spool:
            if self._is_in_another_store(key):
                self.ignored += 1
            elif kind == _PAYLOAD:
                while above and not key.startswith(above[-1]):
                    above.pop()
                while above and key[len(above[-1]) : len(above[-1]) + 1] == b"/":
                    self._in_the_way.add([(above.pop(),)])
                    self.refusals += 1
                if not above or above[-1] != key:  # a listing may have a key twice
                    above.append(key)
            elif kind == _REFUSED:
                self.refusals += 1
                if len(refused) < MOST_REFUSED:
                    refused.append(RefusedKey(key_text(key), reason))
            else:
                raise head_lost(store.open(), key_text(key))
        blocked = (RefusedKey(key_text(path), IN_THE_WAY) for (path,) in islice(self._in_the_way, MOST_REFUSED))
        self.refused = sorted((*refused, *blocked), key=attrgetter("key"))[:MOST_REFUSED]

    def _is_in_another_store(self, key: bytes) -> bool:
        return bool(self._other_stores) and not self._other_stores.isdisjoint(parents(key_text(key)))


class DiscoveryJob:
    """Lists a store without a head. An `engine.job.Job`; the caller closes the result.

    With `divided`, the parts are directories, which takes some requests; without, the whole store is one part, and
    `TooManyObjects` is raised, as early as possible, if it has more than `most` objects.
    """

    row = Verdict

    def __init__(self, store: StoreHandle, *, divided: bool, most: int | None = None) -> None:
        self._store = store
        self._divided = divided
        self._most = most

    @property
    def stage(self) -> Stage:
        return Stage("listing")

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[StorePart]]:
        found = divide(self._store.open(), wanted) if self._divided else [StorePart(None)]
        if StorePart(None) not in found:
            found += [StorePart(keys.LOGS), StorePart(keys.PACKS)]  # P9: the parts hold none of Bayou's own keys
        return groups(found, wanted)

    def run(self, part: Sequence[StorePart]) -> Iterator[Verdict]:
        store = self._store.open()
        return (verdict for directory in part for verdict in judge(store, directory, self._most))

    def fold(self, rows: Iterable[Verdict]) -> Discovery:
        return Discovery(rows, self._store)


def judge(store: Store, part: StorePart, most: int | None = None) -> Iterator[Verdict]:
    """List a part, and yield verdicts on its keys; `TooManyObjects` if they are more than `most`.

    A part has all keys of a directory that is another store, or none (`engine.parts`), so at its end the part knows
    which empty objects need no check whether they are folders.
    """
    other_stores: set[str] = set()
    listed = ignored = 0
    with closing(SortedSpool(1)) as doubtful:
        for page in objects(store, part):
            listed += len(page)
            activity.seen(len(page))
            if most is not None and listed > most:
                raise TooManyObjects
            for meta in page:
                key = meta.key
                ours = in_payload(key)
                if ours is None:
                    if proves_head(key):
                        yield Verdict(_PROOF, key)
                    continue
                outside = nested_store(key)
                if outside is not None and outside not in other_stores:
                    other_stores.add(outside)
                    yield Verdict(_OTHER_STORE, outside)
                if not ours:
                    ignored += 1
                elif meta.size == 0 or key.endswith("/"):
                    doubtful.add([(key_bytes(key), meta.size, meta.etag, meta.version, meta.modified)])
                else:
                    yield _verdict(meta)
        for rows in batched(doubtful, _BATCH):
            found = [ObjectMeta(key_text(key), *rest) for key, *rest in rows]
            own = [meta for meta in found if other_stores.isdisjoint(parents(meta.key))]
            folders = folder_markers(store, own)
            yield from (_verdict(meta) for meta in own if meta.key not in folders)
            ignored += len(found) - len(own)
    yield Verdict(_IGNORED, size=ignored)


def _verdict(meta: ObjectMeta) -> Verdict:
    """Judge an object at or below a payload root by its key alone."""
    key = meta.key
    why = refusal(key)
    if why == OF_ANOTHER_SYSTEM:
        return Verdict(_IGNORED, size=1)
    if why is not None:
        return Verdict(_REFUSED, key, reason=why)
    kind = _PAYLOAD if keys.parse_payload(key).push is None else _PUSHED
    return Verdict(kind, key, meta.size, meta.etag, meta.version, meta.modified)


def discover(store: StoreHandle, engines: Engines) -> Discovery:
    """List a store without a head; the caller closes the result. Nothing is written (V15).

    A failed listing is raised, never taken for an empty one (V4). An object that only a client with a head writes
    shows that there is, or was, a head: `AlreadyExists` if it exists by now (read it instead), `HeadLost` if not (P9).

    The size of the store is not known before. So this process lists the store as one part, without any request to
    divide it, as far as the selector's limit. A longer listing starts again, in parts that are listed at the same time,
    with the engine that was chosen for more than that many objects.
    """
    limit = engines.selector.limit(SCAN)
    limit = LARGE if limit is None else min(limit, LARGE)
    found: Discovery | None = None
    here = LocalExecutor(deadline=engines.deadline, progress=engines.progress, threads=1)
    try:
        found = here.run(DiscoveryJob(store, divided=False, most=limit))
    except TooManyObjects:
        pass
    if found is None:
        found = engines.run(
            Needs((store,)),
            lambda executor: executor.run(DiscoveryJob(store, divided=True)),
            what="the store was listed",
            cost=SCAN,
            files=limit + 1,
        )
    if found.refusals > len(found.refused):
        engines.warn(f"{found.refusals} keys were refused; the first {len(found.refused)} are named")
    return found


class PayloadListing(Struct, frozen=True):
    """The payload objects of a store, of Bayou and of other writers; `head_proved`: there is, or was, a head (P9)."""

    objects: Sequence[ObjectMeta]
    head_proved: bool


def list_payload(store: Store) -> PayloadListing:
    """List the payload of a store in this process, for a rebuild, which holds all of it. Nothing is written (V15)."""
    found: dict[str, ObjectMeta] = {}
    verdicts = list(judge(store, StorePart(None)))
    other_stores = {verdict.key for verdict in verdicts if verdict.kind == _OTHER_STORE}
    proved = False
    for kind, key, size, etag, version, modified, _ in verdicts:
        if kind in (_PUSHED, _PAYLOAD) and other_stores.isdisjoint(parents(key)):
            # If an object and a "folder" are listed under one key, the larger is the object.
            if key not in found or size > found[key].size:
                found[key] = ObjectMeta(key, size, etag, version, modified)
            proved = proved or kind == _PUSHED
        proved = proved or kind == _PROOF
    return PayloadListing(list(found.values()), proved)
