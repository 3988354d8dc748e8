"""What the index needs of a store; `bayou.objectstore.store.Store` has it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from bayou.objectstore.keys import Key
from bayou.objectstore.transport import Condition, Fetched, ObjectMeta, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
R = TypeVar("R")


class Reads(Protocol):
    """A store that can be read."""

    @property
    def url(self) -> str: ...

    def get(self, key: Key, *, if_none_match: str | None = None, most: int | None = None) -> Fetched | None: ...

    def head(self, key: Key) -> ObjectMeta: ...

    def list(self) -> Iterator[Sequence[ObjectMeta]]: ...

    def map(self, function: Callable[[T], R], items: Iterable[T], /, *, threads: int | None = None) -> Iterator[R]: ...


class Writes(Reads, Protocol):
    """A store that can be read and written."""

    def put(self, key: Key, data: Buffer, *, condition: Condition | None = None) -> Stored: ...
