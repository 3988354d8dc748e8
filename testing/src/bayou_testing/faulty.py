"""A transport that fails on purpose: the n-th request, before or after it took effect.

Faults sit below retries and above the provider, so what a test sees is what a user would: the same error mapping, the
same repetition, the same bytes left behind in the store.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import BadAnswer, Unavailable
from bayou.objectstore.transport import Condition, GetResult, ObjectMeta, PutResult, SupportsRead, Transport

if TYPE_CHECKING:
    from typing_extensions import Buffer

Verb = Literal["get", "head", "put", "list", "delete"]
When = Literal["before", "after"]


class Crash(BaseException):
    """The process dies here. Not an `Exception`, so that nothing on the way may handle it."""


class Fault(Struct, frozen=True):
    """Which requests to meddle with, and how.

    Of the requests that `verb` and `key` (a pattern, searched) select, the `nth` (from 1; None: all of them), and
    then at most `times` in a row. `error` is raised before the request is sent, or after it took effect (its answer
    is lost); `delay` waits first; `truncate` cuts what a get returned.
    """

    verb: Verb | None = None
    key: str = ""
    nth: int | None = None
    times: int | None = None
    when: When = "before"
    error: Callable[[], BaseException] | None = None
    delay: float = 0.0
    truncate: int | None = None


def lost_answer() -> BaseException:
    return Unavailable("the connection broke, and the answer with it")


def crash() -> BaseException:
    return Crash("killed")


@dataclass
class Seen:
    """One request that was sent."""

    verb: Verb
    key: str


@dataclass
class FaultyTransport:
    """A transport around another that obeys `faults` and remembers every request in `seen`."""

    inner: Transport
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    dead: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._met: dict[int, int] = {}

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def sorted_listing(self) -> bool:
        return self.inner.sorted_listing

    @property
    def delete_batch(self) -> int:
        return self.inner.delete_batch

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        faults = self._meet("get", key)
        found = self.inner.get(key, span=span, if_match=if_match, if_none_match=if_none_match, timeout=timeout)
        self._after(faults)
        for fault in faults:
            if fault.truncate is not None and found is not None:
                cut = memoryview(found.data)[: fault.truncate]
                raise BadAnswer(f"GET {key} brought {len(cut)} bytes of {len(memoryview(found.data))}")
        return found

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        if not isinstance(self.inner, SupportsRead):
            found = self.get(key, span=span, timeout=timeout)
            assert found is not None
            return found.data
        faults = self._meet("get", key)
        data = self.inner.read(key, span, timeout=timeout)
        self._after(faults)
        for fault in faults:
            if fault.truncate is not None:
                return memoryview(data)[: fault.truncate]
        return data

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        faults = self._meet("head", key)
        meta = self.inner.head(key, timeout=timeout)
        self._after(faults)
        return replace(meta)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        faults = self._meet("put", key)
        stored = self.inner.put(key, data, condition=condition, attributes=attributes, timeout=timeout)
        self._after(faults)
        return stored

    def put_chunks(
        self,
        key: str,
        chunks: Iterable[Buffer],
        *,
        part_size: int,
        parallel: int,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        faults = self._meet("put", key)
        stored = self.inner.put_chunks(
            key, chunks, part_size=part_size, parallel=parallel, attributes=attributes, timeout=timeout
        )
        self._after(faults)
        return stored

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        faults = self._meet("list", prefix)
        for number, page in enumerate(self.inner.list(prefix, after=after, timeout=timeout)):
            if number:
                faults = self._meet("list", prefix)
            yield page
            self._after(faults)

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        faults = self._meet("delete", " ".join(keys))
        self.inner.delete(keys, timeout=timeout)
        self._after(faults)

    def _meet(self, verb: Verb, key: str) -> Sequence[Fault]:
        """Record a request, and return the faults that apply to it, after those that come before it."""
        with self._lock:
            if self.dead:
                raise Crash("a dead process sends nothing")
            self.seen.append(Seen(verb, key))
            chosen = [fault for number, fault in enumerate(self.faults) if self._applies(number, fault, verb, key)]
        for fault in chosen:
            if fault.delay:
                time.sleep(fault.delay)
        self._raise(chosen, "before")
        return chosen

    def _applies(self, number: int, fault: Fault, verb: Verb, key: str) -> bool:
        if fault.verb not in (None, verb) or not re.search(fault.key, key):
            return False
        met = self._met[number] = self._met.get(number, 0) + 1
        first = fault.nth or 1
        times = fault.times if fault.times is not None else (1 if fault.nth is not None else None)
        return met >= first and (times is None or met < first + times)

    def _after(self, faults: Sequence[Fault]) -> None:
        self._raise(faults, "after")

    def _raise(self, faults: Sequence[Fault], when: When) -> None:
        for fault in faults:
            if fault.error is not None and fault.when == when:
                error = fault.error()
                self.dead = self.dead or isinstance(error, Crash)
                raise error
