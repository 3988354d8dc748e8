"""What is known of one version of an item: its `metadata.yaml`. A version is there if and only if this file is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import NoneType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import RecordDamaged
from bayou.records import document
from bayou.records.layout import VersionPath
from bayou.records.owner import Owner


class Metadata(Struct, frozen=True):
    """One version. `id` is the item's: the same for all its versions, and over a rename.

    `size` and `sha256` are of the content (of streaming data that was appended to, `sha256` is not known: None).
    `lifetime` and `keep` are as they were given. `deleted` marks the highest version of an item once it is deleted,
    so that its number is not used again; `renamed_to` says where its readers are sent.
    """

    id: str
    name: str
    version: int
    content_type: str
    size: int
    sha256: str | None
    owner: Owner
    created_at: str
    tags: Mapping[str, str] = field(default_factory=dict)
    lifetime: str | None = None
    keep: str | None = None
    streaming: bool = False
    deleted: bool = False
    renamed_to: str | None = None

    @property
    def place(self) -> VersionPath:
        """Where this version lies."""
        return VersionPath(self.owner.type, self.owner.model_id, self.name, self.version)

    def at(self, place: VersionPath) -> Metadata:
        """Return this as metadata of the version at a place: where a file lies decides, whatever stands in it."""
        if self.place == place:
            return self
        owner = replace(self.owner, type=place.type, model_id=place.model_id)
        return replace(self, name=place.name, version=place.version, owner=owner)

    def to_document(self) -> dict[str, object]:
        """Return the fields of `metadata.yaml`, in their order."""
        owner = ((name, getattr(self.owner, name)) for name, _ in _OWNER_SHAPE)
        fields: dict[str, object] = {name: getattr(self, name) for name, _ in _SHAPE}
        fields["tags"] = dict(self.tags)
        fields["owner"] = {name: value for name, value in owner if value is not None}
        return fields

    def to_bytes(self) -> bytes:
        """Return the content of `metadata.yaml`."""
        return document.dump(self.to_document())

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Metadata:
        """Read a `metadata.yaml`; `RecordDamaged` names the file, `where`, and what is wrong with it."""
        return cls.from_document(document.load(data, where, limits.METADATA_BYTES), where)

    @classmethod
    def from_document(cls, found: Mapping[str, Any], where: str = "the metadata") -> Metadata:
        """Check the fields of a `metadata.yaml`. What a later Bayou may have added is passed over."""
        owner, tags = found.get("owner"), found.get("tags", {})
        if type(owner) is not dict:
            raise _wrong("owner", where)
        if type(tags) is not dict or not _SOME_TEXT.issuperset(map(type, chain(tags, tags.values()))):
            raise _wrong("tags", where)
        values = _checked(_SHAPE, found, where)
        if not 0 <= values["size"] <= limits.SIZE_MAX:
            raise _wrong("size", where)
        if not 0 < values["version"] <= limits.VERSION_MAX:
            raise _wrong("version", where)
        return cls(owner=Owner(**_checked(_OWNER_SHAPE, owner, where, "owner's ")), tags=tags, **values)


_TEXT, _MAYBE, _NUMBER, _TRUTH = (str,), (str, NoneType), (int,), (bool,)
_SHAPE: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("id", _TEXT),
    ("name", _TEXT),
    ("version", _NUMBER),
    ("content_type", _TEXT),
    ("size", _NUMBER),
    ("sha256", _MAYBE),
    ("created_at", _TEXT),
    ("lifetime", _MAYBE),
    ("keep", _MAYBE),
    ("streaming", _TRUTH),
    ("deleted", _TRUTH),
    ("renamed_to", _MAYBE),
)
_OWNER_SHAPE: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("model", _TEXT),
    ("model_id", _TEXT),
    ("type", _TEXT),
    ("output", _MAYBE),
    ("run", _MAYBE),
    ("workflow", _MAYBE),
    ("job", _MAYBE),
    ("step", _MAYBE),
    ("repo", _TEXT),
)
_DEFAULTS = {"streaming": False, "deleted": False}
_SOME_TEXT = frozenset({str})
_accepted: set[tuple[object, ...]] = set()
"""Hot: the types that the fields of one record had, where they were found to be right."""


def _checked(
    shape: tuple[tuple[str, tuple[type, ...]], ...], found: Mapping[str, Any], where: str, whose: str = ""
) -> dict[str, Any]:
    values = {name: found.get(name) for name, _ in shape}
    signature = (len(shape), *map(type, values.values()))
    if signature not in _accepted:
        for name, kinds in shape:
            if values[name] is None:
                values[name] = _DEFAULTS.get(name)
            if type(values[name]) not in kinds:  # the very type: a truth value is an int, and no number
                raise _wrong(f"{whose}{name}", where)
        _accepted.add((len(shape), *map(type, values.values())))
    return values


def _wrong(name: str, where: str) -> RecordDamaged:
    return RecordDamaged(
        f"{where}: its {name} is missing or wrong", hint="bayou datastore verify says whether it is what was stored"
    )
