"""Listings of a store: page by page, resumed after a failure, and never ended early (V4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from msgspec import Struct

from bayou.core import limits
from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, StoreError
from bayou.objectstore.keys import Key, KeyScope
from bayou.objectstore.retry import RetryingClient
from bayou.objectstore.threads import run_cancellable
from bayou.objectstore.transport import DirectoryListing, ObjectMeta, SupportsDirectoryListing, Transport


class Listing(Struct, frozen=True):
    """The listings of one store; see `Store.list` and `Store.list_directory`."""

    transport: Transport
    scope: KeyScope
    client: RetryingClient

    def pages(self, under: Key | None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects below a directory."""
        prefix, client = self._prefix(under), self.client
        deadline = client.call_deadline()
        last: str | None = None
        ordered, attempt = True, 1
        while True:
            resumed = last is not None
            try:
                for page in self._send(prefix, last, deadline):
                    deadline.remaining()
                    if not page:
                        continue
                    client.contacted.set()
                    found = [self._scoped(meta, prefix) for meta in page]
                    ordered = ordered and _ascends(last, page)
                    if (resumed and not ordered) or page[-1].key == last:
                        raise BadAnswer(
                            f"{client.url} does not list in order, so a listing that broke cannot go on",
                            hint="try again",
                        )
                    attempt, last = 1, page[-1].key
                    yield found
                    deadline = client.call_deadline()
                return
            except StoreError as error:
                if last is not None and not (ordered and self.transport.sorted_listing):
                    raise
                client.wait_or_raise(error, attempt, f"LIST {under or ''}".rstrip(), deadline)
                attempt += 1

    def list_directory(self, under: Key | None) -> DirectoryListing | None:
        """Return the direct content of a directory; None where the transport cannot list it exactly."""
        transport = self.transport
        if not isinstance(transport, SupportsDirectoryListing):
            return None
        prefix, deadline = self._prefix(under), self.client.call_deadline()

        def attempt(timeout: float) -> DirectoryListing | None:
            return run_cancellable(lambda: transport.list_directory(prefix, timeout=timeout), deadline.remaining)

        found = self.client.send("list", under or Key(""), attempt, deadline=deadline)
        if found is None:
            return None
        return DirectoryListing(
            [self._relative(directory, prefix) for directory in found.directories],
            (self._scoped(meta, prefix) for meta in found.objects),
        )

    def _send(self, prefix: str, after: str | None, deadline: Deadline) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages as they arrive, and count one request for each, for a failed one too, and one at least."""
        counter = self.client.counter
        pages = self.transport.list(prefix, after=after, timeout=self.client.request_timeout(deadline))
        counter.sent("list")
        received = 0
        try:
            # V12: a transport may need several requests for one page, and each of them may be slow. Every page has the
            # caller's deadline, or else a deadline of its own.
            while (
                page := run_cancellable(partial(next, pages, None), self.client.call_deadline().remaining)
            ) is not None:
                counter.sent("list", 1 if received else 0)
                received += 1
                yield page
        except StoreError:
            counter.sent("list", 1 if received else 0)
            raise

    def _prefix(self, under: Key | None) -> str:
        return self.scope.root if under is None else f"{self.scope.full(under)}/"

    def _scoped(self, meta: ObjectMeta, prefix: str) -> ObjectMeta:
        """Return the metadata under the store's own key; refuse a key outside of it and an impossible size (V25)."""
        if not 0 <= meta.size <= limits.INT64_MAX:
            raise BadAnswer(
                f"{self.client.url} lists {meta.key!r} with a size of {meta.size} bytes", hint="check the endpoint"
            )
        return with_key(meta, self._relative(meta.key, prefix))

    def _relative(self, full: str, prefix: str) -> str:
        if not full.startswith(prefix):  # V9
            raise BadAnswer(
                f"{self.client.url} lists {full!r}, which is not below {prefix!r}", hint="check the endpoint"
            )
        return full[len(self.scope.root) :]


def with_key(meta: ObjectMeta, key: str) -> ObjectMeta:
    """Return the metadata of an object under another key. Hot: `replace` takes five times as long."""
    return ObjectMeta(key, meta.size, meta.etag, meta.version, meta.modified)


def _ascends(last: str | None, page: Sequence[ObjectMeta]) -> bool:
    """Return whether the keys of a page ascend bytewise, starting after `last`."""
    return (last is None or last < page[0].key) and all(left.key < right.key for left, right in pairwise(page))
