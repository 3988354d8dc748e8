"""Make packs of files and upload them, several at a time, while the caller reads the next files.

Memory is bounded by the size of a pack times the number of uploads in flight. A pack's name is new in each attempt, and
a retry of its PUT sends the same bytes from memory (P1). The files of a pack have their locations as soon as the pack
is finished, so the index nodes that name them can be written while the pack is still on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial

from msgspec import Struct

from bayou.core.errors import StoreError
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.threads import ThreadPool, wait_for_result
from bayou.objectstore.transport import PutResult
from bayou.packs.archive import MOST_MEMBERS, Member, PackBuilder
from bayou.packs.usage import SMALL_SHARE

PACK_BYTES = 8 << 20
"""The size of a pack, unless the configuration says otherwise: large enough that requests cost little beside bytes."""

IN_FLIGHT = 4
"""Packs that a client uploads at once."""

_POLL_S = 0.05

_LEAST_BYTES = 1 << 20
"""The least size of a pack on a slow link, where a pack is as large as the link moves in some seconds.

No full pack counts as small (`usage.is_small`): otherwise each compaction over that link would move all files again.
"""


class SealedPack(Struct, frozen=True):
    """A pack whose upload has begun: its name and its files."""

    name: str
    members: Sequence[Member]


class SentPack(Struct, frozen=True):
    """A pack whose upload is over: with the store's response, or the error that ended it."""

    pack: SealedPack
    stored: PutResult | None = None
    error: StoreError | None = None


class PackWriter:
    """Uploads packs of the files that the caller adds. Close it; then uploads that still run are abandoned (P1)."""

    def __init__(self, store: Store, pack_size: int = PACK_BYTES) -> None:
        self._store = store
        self._pack_size = pack_size
        self._target = self._suitable()
        self._pool = ThreadPool(IN_FLIGHT)
        self._builder = PackBuilder()
        self._running: deque[tuple[SealedPack, Future[PutResult]]] = deque()
        self._sent: deque[SentPack] = deque()

    def is_full(self) -> bool:
        """Return whether `seal`, and an `add` that completes a pack, would wait for an earlier pack."""
        return len(self._running) >= IN_FLIGHT and not self._running[0][1].done()

    def completes(self, size: int) -> bool:
        """Return whether a file of so many bytes may complete the current pack."""
        return self._builder.size + size >= self._target or len(self._builder) + 1 >= MOST_MEMBERS

    def wait(self) -> None:
        """Wait a moment for the earliest pack."""
        wait([self._running[0][1]], timeout=_POLL_S)

    def add(self, path: str, push: str, data: bytes, sha256: bytes, modified: int) -> SealedPack | None:
        """Add a file, whose hash is of exactly these bytes (P3); return the pack that this completes, if any."""
        self._builder.add(path, push, data, sha256, modified)
        if self._builder.size >= self._target or len(self._builder) >= MOST_MEMBERS:
            return self.seal()
        return None

    def seal(self) -> SealedPack | None:
        """Complete the current pack and begin its upload, once less than `IN_FLIGHT` run; None if it has no file."""
        if not len(self._builder):
            return None
        while len(self._running) >= IN_FLIGHT:
            self._sent.append(self._wait())
        pack, self._builder = self._builder.finish(), PackBuilder()
        sealed = SealedPack(pack.name, pack.members)
        self._running.append((sealed, self._pool.submit(partial(_put, self._store, pack.name, pack.data))))
        return sealed

    def sent(self) -> Iterator[SentPack]:
        """Yield the packs whose upload is over, without waiting for others."""
        while self._running and self._running[0][1].done():
            self._sent.append(self._wait())
        while self._sent:
            yield self._sent.popleft()

    def drain(self) -> Iterator[SentPack]:
        """Yield every pack that was sealed and not yielded yet, each once its upload is over."""
        while self._sent or self._running:
            yield self._sent.popleft() if self._sent else self._wait()

    def arrived(self) -> Iterator[SentPack]:
        """Yield the packs that the store has acknowledged, for a caller that stops early; wait for no other."""
        while self._sent:
            sent = self._sent.popleft()
            if sent.stored is not None:
                yield sent
        for sealed, future in self._running:
            if future.done() and future.exception() is None:
                yield SentPack(sealed, future.result())

    def close(self) -> None:
        """Abandon what still runs; an error that made the caller stop need not wait for it."""
        running, self._running = self._running, deque()
        self._pool.cancel_and_join([future for _, future in running], self._store.stop)

    def _wait(self) -> SentPack:
        sealed, future = self._running[0]
        try:
            stored = wait_for_result(future)
        except StoreError as error:
            self._running.popleft()
            return SentPack(sealed, error=error)
        self._running.popleft()
        self._target = self._suitable()
        return SentPack(sealed, stored)

    def _suitable(self) -> int:
        """Return the size of the next pack: as configured, or less on a slow link, so that less is sent twice."""
        link = self._store.link
        least = max(min(self._pack_size, _LEAST_BYTES), self._pack_size // SMALL_SHARE)
        return link.piece(link.up, least, self._pack_size)


def _put(store: Store, name: str, data: bytes) -> PutResult:
    return store.put(keys.pack(name), data)  # unconditionally: no other attempt has this key (P1)
