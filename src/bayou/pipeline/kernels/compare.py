"""Compare an index with a listing, one sorted part of the keys at a time: the rules are those of `sync.judge`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import pyarrow

from bayou.index.discovery import directories, entry_of
from bayou.index.entry import Entry
from bayou.pipeline.arrow import BYTES, INT, TEXT, TIME, batches_of_rows, key_text, rows
from bayou.pipeline.stores import store_of
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.store.transport import ObjectMeta
from bayou.sync.judge import MISSING, UNINDEXED, WELL, Rules, read_back

ENTRY, WASTED, OBJECT = "entry", "wasted", "object"
REFUSED, NAMELESS, TRASH_REFUSED, DAMAGED = "refused", "nameless", "trash-refused", "damaged"
"""Of an index besides: a row that nothing is done by (V25; one that can name no object; one of the trash), and a node
that cannot be read."""

UNSAFE = (REFUSED, NAMELESS, TRASH_REFUSED)

CASES = pyarrow.schema(
    {"key": BYTES, "kind": TEXT, "size": INT, "sha256": BYTES, "etag": TEXT, "version": TEXT, "modified": TIME}
)
"""What an index (`ENTRY`), its trash (`WASTED`) or a listing (`OBJECT`) says of a key: path and push follow from it."""

FINDINGS = pyarrow.schema(
    {
        "finding": TEXT,
        "number": INT,
        "path": TEXT,
        "push": TEXT,
        "size": INT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "modified": INT,
    }
)
"""A finding with the entry that it is about, as an entry has it; or, without a path, how many are of one kind."""

_AT_ONCE = 2000


class Finding(NamedTuple):
    """A row of `FINDINGS`."""

    finding: str
    number: int = 1
    path: str | None = None
    push: str | None = None
    size: int | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    modified: int | None = None

    @classmethod
    def of(cls, finding: str, entry: Entry) -> Finding:
        return cls(
            finding,
            1,
            entry.path,
            entry.push,
            entry.size,
            entry.sha256,
            entry.etag,
            entry.version,
            entry.modified,
        )

    @property
    def entry(self) -> Entry:
        """The entry that this is about."""
        _, _, path, push, size, sha256, etag, version, modified = self
        assert path is not None
        assert size is not None
        assert modified is not None
        return Entry(path, push, size, None if sha256 is None else bytes(sha256), etag, version, modified)


class Case(NamedTuple):
    """All that is known of one key."""

    entry: Entry | None
    at: ObjectMeta | None
    wasted: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """A kernel: batches of `CASES`, by key, to rows of `FINDINGS`. Objects that a listing lacks are looked for."""

    recipe: Recipe
    rules: Rules

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return in_batches(self.findings(store_of(self.recipe), cases(batches)))

    def findings(self, store: Store, found: Iterable[Case]) -> Iterator[Finding]:
        """Yield what is worth a word, and at the end how many are not."""
        others = Counter[str]()
        missing: list[Entry] = []
        for entry, at, wasted in found:
            if entry is not None:
                finding = self.rules.entry(entry, at)
                if finding == MISSING:
                    missing.append(entry)
                elif finding == WELL:
                    others[WELL] += 1
                else:
                    yield Finding.of(finding, entry)
            elif at is not None:
                finding = self.rules.stray(at, wasted=wasted)
                if finding == UNINDEXED:
                    yield Finding.of(finding, entry_of(at))
                else:
                    others[finding] += 1
            if len(missing) == _AT_ONCE:
                yield from self._by_name(store, missing)
                missing.clear()
        yield from self._by_name(store, missing)
        yield from (Finding(finding, number) for finding, number in others.items())

    def _by_name(self, store: Store, missing: Iterable[Entry]) -> Iterator[Finding]:
        return (Finding.of(finding, entry) for finding, entry in self.rules.by_name(store, missing))


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A kernel: findings, each with its entry, to those that the bytes of their objects make.

    `seconds`: how long it may take to read one, however large.
    """

    recipe: Recipe
    seconds: float | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        entries = (Finding(*row).entry for found in batches for row in rows(found, FINDINGS.names))  # type: ignore[arg-type]
        judged = read_back(store_of(self.recipe, self.seconds), entries)
        return in_batches(Finding.of(finding, entry) for finding, entry in judged if finding != WELL)


def cases(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[Case]:
    """Put together what rows, sorted by key, say of each."""
    found = (row for one in batches for row in rows(one, CASES.names))
    for key, group in groupby(found, key=itemgetter(0)):
        assert isinstance(key, bytes)
        yield _case(key_text(key), group)


def inside(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the directories, as `path`, that entries and objects at plain paths lie in."""
    for found in batches:
        named = [(*keys.parse_payload(key_text(key)), kind) for key, kind in rows(found, ("key", "kind"))]  # type: ignore[arg-type]
        names = directories(path for path, push, kind in named if kind == ENTRY or (kind == OBJECT and push is None))
        yield pyarrow.RecordBatch.from_pydict({"path": pyarrow.array(list(names), TEXT)})


def in_batches(found: Iterable[Finding]) -> Iterator[pyarrow.RecordBatch]:
    """Put findings into batches."""
    return batches_of_rows(FINDINGS, found, _AT_ONCE)


def _case(key: str, group: Iterable[tuple[object, ...]]) -> Case:
    entry: Entry | None = None
    at: ObjectMeta | None = None
    wasted = False
    for _, kind, size, sha256, etag, version, modified in group:
        if kind == ENTRY:
            entry = Entry(*keys.parse_payload(key), size, sha256, etag, version, modified)  # type: ignore[arg-type]
        elif kind == WASTED:
            wasted = True
        elif at is None or size > at.size:  # type: ignore[operator]
            # Of an object and a "folder" that a listing calls by one key, the object is the one with bytes.
            at = ObjectMeta(key, size, etag, version, modified)  # type: ignore[arg-type]
    return Case(entry, at, wasted)
