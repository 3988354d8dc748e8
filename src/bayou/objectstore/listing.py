"""List what a store holds: page by page, resumed where it broke, and never ended early (V4)."""

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
from bayou.objectstore.threads import watched
from bayou.objectstore.transport import Level, ListsLevels, ObjectMeta, Transport


class Listing(Struct, frozen=True):
    """The listings of one store; see `Store.list` and `Store.level`."""

    transport: Transport
    scope: KeyScope
    sender: RetryingClient

    def pages(self, under: Key | None) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of what is below a directory."""
        prefix, sender = self._prefix(under), self.sender
        deadline = sender.bound()
        last: str | None = None
        ordered, attempt = True, 1
        while True:
            resumed = last is not None
            try:
                for page in self._send(prefix, last, deadline):
                    deadline.remaining()
                    if not page:
                        continue
                    sender.contacted.set()
                    found = [self._named(meta, prefix) for meta in page]
                    ordered = ordered and _in_order(last, page)
                    if (resumed and not ordered) or page[-1].key == last:
                        raise BadAnswer(
                            f"{sender.url} does not list in order, so a listing that broke cannot go on",
                            hint="try again",
                        )
                    attempt, last = 1, page[-1].key
                    yield found
                    deadline = sender.bound()
                return
            except StoreError as error:
                if last is not None and not (ordered and self.transport.sorted_listing):
                    raise
                sender.pause(error, attempt, f"LIST {under or ''}".rstrip(), deadline)
                attempt += 1

    def level(self, under: Key | None) -> Level | None:
        """Return what lies directly in a directory; None where the store cannot tell, or not surely."""
        transport = self.transport
        if not isinstance(transport, ListsLevels):
            return None
        prefix, deadline = self._prefix(under), self.sender.bound()

        def attempt(timeout: float) -> Level | None:
            return watched(lambda: transport.level(prefix, timeout=timeout), deadline.remaining)

        found = self.sender.send("list", under or Key(""), attempt, deadline=deadline)
        if found is None:
            return None
        return Level(
            [self._relative(one, prefix) for one in found.directories],
            (self._named(meta, prefix) for meta in found.objects),
        )

    def _send(self, prefix: str, after: str | None, deadline: Deadline) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages as they come, and count the request behind each; one at least, and one that failed."""
        meter = self.sender.meter
        pages = self.transport.list(prefix, after=after, timeout=self.sender.timeout(deadline))
        meter.sent("list")
        came = 0
        try:
            # V12: a page is as many requests as it takes, and each of them may be slow, but not too slow. So every page
            # has the caller's deadline, or else one of its own.
            while (page := watched(partial(next, pages, None), self.sender.bound().remaining)) is not None:
                meter.sent("list", 1 if came else 0)
                came += 1
                yield page
        except StoreError:
            meter.sent("list", 1 if came else 0)
            raise

    def _prefix(self, under: Key | None) -> str:
        return self.scope.root if under is None else f"{self.scope.full(under)}/"

    def _named(self, meta: ObjectMeta, prefix: str) -> ObjectMeta:
        """Return an object under our own key; refuse what lies elsewhere, and a size that nothing holds (V25)."""
        if not 0 <= meta.size <= limits.INT64_MAX:
            raise BadAnswer(
                f"{self.sender.url} lists {meta.key!r} with a size of {meta.size} bytes", hint="check the endpoint"
            )
        return named(meta, self._relative(meta.key, prefix))

    def _relative(self, full: str, prefix: str) -> str:
        if not full.startswith(prefix):  # V9
            raise BadAnswer(
                f"{self.sender.url} lists {full!r}, which is not below {prefix!r}", hint="check the endpoint"
            )
        return full[len(self.scope.root) :]


def named(meta: ObjectMeta, key: str) -> ObjectMeta:
    """Return what a store says of an object, under our own key. Hot: `replace` takes five times as long."""
    return ObjectMeta(key, meta.size, meta.etag, meta.version, meta.modified)


def _in_order(last: str | None, page: Sequence[ObjectMeta]) -> bool:
    """Whether a page comes after `last`, bytewise, and so does each key after the one before it."""
    return (last is None or last < page[0].key) and all(one.key < two.key for one, two in pairwise(page))
