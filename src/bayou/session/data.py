"""Data as programs use it: `Data` and `ModelData` take models by name, and return `DataItem`s."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, Unpack

from bayou.data.items import Item, metadata_of
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.data.content import Content
    from bayou.data.items import DataRepository
    from bayou.data.metadata import Metadata

Resolve = Callable[[str], ModelRef]
"""Returns the model with a name or id."""


class SaveOptions(TypedDict, total=False):
    """Keyword arguments of `save`."""

    tags: Mapping[str, str]
    content_type: str | None
    lifetime: str | None
    keep: str | None
    streaming: bool


class DataItem:
    """One version of an item. Reading its content fetches it from the store when it is absent here."""

    def __init__(self, data: DataRepository, item: Item) -> None:
        self._data = data
        self._item = item

    @property
    def metadata(self) -> Metadata:
        """Everything that is recorded about the version, its owner included."""
        return self._item.metadata

    @property
    def model(self) -> str:
        """The name that the item's model had when it made this version."""
        return self.metadata.owner.model

    @property
    def name(self) -> str:
        """The item's name, which is not the requested one after a rename."""
        return self.metadata.name

    @property
    def version(self) -> int:
        return self.metadata.version

    @property
    def size(self) -> int:
        """The size of the content in bytes."""
        return self.metadata.size

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the content in hex; None for streaming data that a program has appended to."""
        return self.metadata.sha256

    @property
    def content_type(self) -> str:
        return self.metadata.content_type

    @property
    def tags(self) -> Mapping[str, str]:
        return self.metadata.tags

    @property
    def created_at(self) -> str:
        """When the version was made: ISO 8601, UTC."""
        return self.metadata.created_at

    def open(self) -> BinaryIO:
        """Open the content for reading; the end of it raises `ContentDamaged` unless the SHA-256 matches."""
        return self._data.open(self._item)

    def read(self) -> bytes:
        """Return the content; `ContentDamaged` unless the SHA-256 matches."""
        return self._data.read(self._item)

    def text(self, encoding: str = "utf-8") -> str:
        """Return the content as text; `UnicodeDecodeError` if it is not."""
        return self.read().decode(encoding)

    def json(self) -> Any:
        """Return the content parsed as JSON; `json.JSONDecodeError` if it is not."""
        return json.loads(self.read())

    def path(self) -> Path:
        """Return the file that holds the content on this machine. Read it only: a write there is a conflict."""
        return self._data.path(self._item)

    def __repr__(self) -> str:
        return f"<DataItem {self.model}/{self.name} version {self.version}>"


class Data:
    """The data of a repo. A model is a `ModelRef`, or the name or id of a model.

    A version that is saved outside of a session is journaled, and pushed by the next push.
    """

    def __init__(self, data: DataRepository, resolve: Resolve) -> None:
        self._data = data
        self._resolve = resolve

    def get(self, model: ModelRef | str, name: str, version: int | None = None) -> DataItem:
        """Return a version, the latest unless one is given; `DataNotFound` if there is none."""
        return DataItem(self._data, self._data.get(self._model(model), name, version))

    def versions(self, model: ModelRef | str, name: str) -> list[DataItem]:
        """Return the versions of an item that are not deleted, the oldest first; `DataNotFound` if it never had any."""
        rows = self._data.versions(self._model(model), name)
        found = [DataItem(self._data, Item(metadata_of(row))) for row in rows if not row.deleted]
        return sorted(found, key=lambda item: item.version)

    def find(
        self,
        model: ModelRef | str | None = None,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        type: str | None = None,  # noqa: A002  (what the record calls it)
        all_versions: bool = False,
    ) -> list[DataItem]:
        """Return the latest version, or all versions, of each item that matches everything that is given."""
        rows = self._data.find(model=model, name=name, tags=tags, type=type, all_versions=all_versions)
        return [DataItem(self._data, Item(metadata_of(row))) for row in rows]

    def save(self, model: ModelRef | str, name: str, value: object, **options: Unpack[SaveOptions]) -> DataItem:
        """Save a new version, durable when this returns.

        Bytes, a `Path`'s file, an open binary file and an iterator of bytes are stored as they are; a `str` is text in
        UTF-8 and never a path; any other value is stored as JSON (`TypeError` if it has no JSON form).
        """
        with _content(value, options) as (content, complete):
            return self._saved(self._data.save(self._model(model), name, content, **complete))

    def append(self, model: ModelRef | str, name: str, value: bytes | str) -> DataItem:
        """Append to the latest version of streaming data; `NotStreaming` for any other."""
        return self._saved(self._data.append(self._model(model), name, _encoded(value)))

    def rename(self, model: ModelRef | str, old: str, new: str) -> DataItem:
        """Rename an item with all its versions; `get` still finds it by its old name."""
        return self._saved(self._data.rename(self._model(model), old, new))

    def delete(self, model: ModelRef | str, name: str, version: int | None = None) -> int:
        """Delete one version, or (None) all; return how many. `DataNotFound` if there is none."""
        return self._data.delete(self._model(model), name, version)

    def _model(self, model: ModelRef | str) -> ModelRef:
        return self._resolve(model) if isinstance(model, str) else model

    def _saved(self, metadata: Metadata) -> DataItem:
        return DataItem(self._data, Item(metadata))


class ModelData:
    """The data of the one model whose lease a session holds."""

    def __init__(self, data: Data, model: ModelRef) -> None:
        self._data = data
        self._model = model

    def get(self, name: str, version: int | None = None) -> DataItem:
        """Return a version, the latest unless one is given; `DataNotFound` if there is none."""
        return self._data.get(self._model, name, version)

    def versions(self, name: str) -> list[DataItem]:
        """Return the versions of an item that are not deleted, the oldest first."""
        return self._data.versions(self._model, name)

    def save(self, name: str, value: object, **options: Unpack[SaveOptions]) -> DataItem:
        """Save a new version, as `Data.save`; the end of the session pushes it."""
        return self._data.save(self._model, name, value, **options)

    def append(self, name: str, value: bytes | str) -> DataItem:
        """Append to the latest version of streaming data; `NotStreaming` for any other."""
        return self._data.append(self._model, name, value)

    def rename(self, old: str, new: str) -> DataItem:
        """Rename an item with all its versions; `get` still finds it by its old name."""
        return self._data.rename(self._model, old, new)

    def delete(self, name: str, version: int | None = None) -> int:
        """Delete one version, or (None) all; return how many. `DataNotFound` if there is none."""
        return self._data.delete(self._model, name, version)


@contextmanager
def _content(value: object, options: SaveOptions) -> Iterator[tuple[Content, SaveOptions]]:
    """Yield the content that a value stands for, and the options with the content type that it implies."""
    if isinstance(value, os.PathLike):
        from bayou.data.content import type_by_name  # noqa: PLC0415

        path = Path(value)
        with path.open("rb") as file:
            yield file, {"content_type": type_by_name(path.name), **options}
    elif isinstance(value, bytes | bytearray | memoryview | str):
        yield _encoded(value), options
    elif hasattr(value, "read") or isinstance(value, Iterator):
        yield value, options  # type: ignore[misc]  # what it yields is checked as it comes
    else:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        yield text.encode(), {"content_type": "application/json", **options}


def _encoded(value: bytes | bytearray | memoryview | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
