"""What expressions see of data."""

from __future__ import annotations

import json
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bayou.core import limits
from bayou.core.documents import read_at_most
from bayou.core.errors import QueryInvalid
from bayou.data.query.expression import check_size
from bayou.model.resolve import resolve_model
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.data.items import Item
    from bayou.data.records import Records
    from bayou.state.connection import Connection

_SHOWN = ("name", "version", "size", "sha256", "content_type", "created_at")


class DataLookup:
    """Answers `data.latest`, `data.version` and `data.query`. Opens the records when first asked, and closes them."""

    def __init__(self, repo: Repo, connection: Connection | None = None) -> None:
        self._repo = repo
        self._connection = connection
        self._records: Records | None = None
        self._open = ExitStack()

    def version(self, model: str, name: str, number: int | None, *, content: bool) -> dict[str, Any]:
        """Return a version, the newest unless one is named; what it says is read only if that is asked for."""
        records = self._opened()
        item = records.data.get(resolve_model(self._repo, model, records), name, number)
        return view(records, item, content=content)

    def query(self, predicate: str) -> list[Any]:
        """Return the versions for which a predicate is true, as `bayou data query` does; every one must be judged."""
        from bayou.data.query import query  # noqa: PLC0415

        records = self._opened()
        records.catalog.refresh()
        found = query(records, predicate)
        if found.failed:
            raise QueryInvalid(
                f"{len(found.failed)} versions cannot be judged: {found.failed[0]}",
                hint="ask first for what only the others have, as name == ... && attributes.x > 1",
            )
        return found.results

    def _opened(self) -> Records:
        if self._records is None:
            from bayou.data.records import Records  # noqa: PLC0415  (most expressions ask for no data)

            self._records = self._open.enter_context(Records(self._repo, connection=self._connection))
        return self._records

    def __enter__(self) -> DataLookup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def view(records: Records, item: Item, *, content: bool) -> dict[str, Any]:
    """Return a version as expressions see it. `content` is its text, null if it is none; `attributes` its JSON."""
    found = item.metadata
    shown: dict[str, Any] = {name: getattr(found, name) for name in _SHOWN}
    shown |= {"model": found.owner.model, "tags": dict(found.tags)}
    if content:
        check_size(found.size)
        with records.data.open(item) as file:
            shown |= _content(read_at_most(file, limits.CONTENT_BYTES))
    return shown


def _content(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"content": None, "attributes": {}}
    try:
        found = json.loads(text) if len(text) <= limits.ATTRIBUTES_BYTES else {}
    except (ValueError, RecursionError):
        found = {}
    return {"content": text, "attributes": found}
