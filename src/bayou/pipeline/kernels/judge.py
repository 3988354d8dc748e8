"""Say of each listed object what discovery makes of it: the rules are those of `index.discovery`, one key at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow

from bayou.index.discovery import OF_ANOTHER_SYSTEM, in_payload, markers, other_store, parents, refusal
from bayou.index.node_store import Reads
from bayou.objectstore import keys
from bayou.objectstore.transport import ObjectMeta
from bayou.pipeline.arrow import BYTES, INT, TEXT, TIME, batch, key_bytes, key_text, rows

PAYLOAD, PUSHED, REFUSED, IGNORED, FOLDER, STORE = "payload", "pushed", "refused", "ignored", "folder", "store"

JUDGED = pyarrow.schema(
    {
        "verdict": TEXT,
        "path": TEXT,
        "key": BYTES,
        "reason": TEXT,
        "size": INT,
        "etag": TEXT,
        "version": TEXT,
        "modified": TIME,
    }
)
"""`path` is payload's and nobody else's; `key` is set where the verdict is another and its key is asked for."""


class Verdict(NamedTuple):
    """A row of `JUDGED`. A tuple: a listing makes many."""

    verdict: str
    path: str | None = None
    key: bytes | None = None
    reason: str | None = None
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    modified: int | None = None


class Judge:
    """Judges the pages of one task's listing. Each other store is told of once, beside the verdicts."""

    def __init__(self, store: Reads) -> None:
        self._store = store
        self._others: set[str] = set()

    def __call__(self, page: Sequence[ObjectMeta]) -> pyarrow.RecordBatch:
        return _batch(self.judge(page))

    def judge(self, page: Sequence[ObjectMeta]) -> Iterator[Verdict]:
        """Yield a verdict on each object but Bayou's own."""
        found: list[ObjectMeta] = []
        for meta in page:
            ours = in_payload(meta.key)
            if ours:
                found.append(meta)
            elif ours is not None:
                yield Verdict(IGNORED)
        folders = markers(self._store, found)
        for meta in found:
            outside = other_store(meta.key)
            if outside is not None and outside not in self._others:
                self._others.add(outside)
                yield Verdict(STORE, key=key_bytes(outside))
            yield _verdict(meta, folder=meta.key in folders)


def without_others(others: frozenset[str], batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Ignore what lies in another store; only after the whole listing is it known which directories are one."""
    for found in batches:
        judged = (Verdict(*row) for row in rows(found, JUDGED.names))  # type: ignore[arg-type]
        yield _batch(Verdict(IGNORED) if _inside(one, others) else one for one in judged)


def _verdict(meta: ObjectMeta, *, folder: bool) -> Verdict:
    if folder:
        return Verdict(FOLDER, key=key_bytes(meta.key))
    why = refusal(meta.key)
    if why == OF_ANOTHER_SYSTEM:
        return Verdict(IGNORED)
    if why is not None:
        return Verdict(REFUSED, key=key_bytes(meta.key), reason=why)
    path, push = keys.parse_payload(meta.key)
    if push is not None:
        return Verdict(PUSHED, None, key_bytes(meta.key), None, meta.size, meta.etag, meta.version, meta.modified)
    return Verdict(PAYLOAD, path, None, None, meta.size, meta.etag, meta.version, meta.modified)


def _inside(one: Verdict, others: frozenset[str]) -> bool:
    if one.verdict == STORE or (one.path is None and one.key is None):
        return False
    key = one.path if one.path is not None else key_text(one.key or b"")
    return not others.isdisjoint(parents(key))


def _batch(verdicts: Iterable[Verdict]) -> pyarrow.RecordBatch:
    columns: Iterable[Sequence[object]] = zip(*verdicts, strict=True)
    return batch(JUDGED, list(columns) or [()] * len(JUDGED))
