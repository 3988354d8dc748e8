"""`metadata.yaml`: what Bayou knows of one version. A version exists if and only if this file does.

`Metadata` is the file's content. `NewVersion` is what a caller says about data besides its content, checked before
anything is written. `parse_lifetime` and `parse_keep` read the two retention settings as people write them. The
functions at the end read the metadata files of a tree, and need nothing but the tree.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import chain
from types import NoneType
from typing import Any, Literal, TypedDict

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.documents import read_at_most
from bayou.core.errors import RecordDamaged, RetentionInvalid
from bayou.data import document
from bayou.data.content import ContentInfo
from bayou.data.layout import ModelRef, Owner, VersionPath, check_item, check_tags, max_bytes, version_number
from bayou.worktree.tree import Worktree

_TEXT, _OPTIONAL_TEXT, _NUMBER, _OPTIONAL_NUMBER, _BOOL = (str,), (str, NoneType), (int,), (int, NoneType), (bool,)
_FIELDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("id", _TEXT),
    ("name", _TEXT),
    ("version", _NUMBER),
    ("content_type", _TEXT),
    ("size", _NUMBER),
    ("sha256", _OPTIONAL_TEXT),
    ("created_at", _TEXT),
    ("lifetime", _OPTIONAL_TEXT),
    ("keep", _OPTIONAL_TEXT),
    ("streaming", _BOOL),
    ("deleted", _BOOL),
    ("renamed_to", _OPTIONAL_TEXT),
    ("restored_from", _OPTIONAL_NUMBER),
    ("files", _OPTIONAL_NUMBER),
)
_RARE = frozenset({"restored_from", "files"})
"""Fields that a file has only if they say something."""

_OWNER_FIELDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("model", _TEXT),
    ("model_id", _TEXT),
    ("type", _TEXT),
    ("output", _OPTIONAL_TEXT),
    ("run", _OPTIONAL_TEXT),
    ("workflow", _OPTIONAL_TEXT),
    ("job", _OPTIONAL_TEXT),
    ("step", _OPTIONAL_TEXT),
    ("repo", _TEXT),
)
_DEFAULTS = {"streaming": False, "deleted": False}
_TEXT_ONLY = frozenset({str})
_accepted_types: set[tuple[object, ...]] = set()
"""Hot: combinations of field types that a check has accepted before."""

_DURATION = re.compile(r"([1-9][0-9]{0,5})(m|h|d|w|mo|y)", re.ASCII)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_MONTHS = {"mo": 1, "y": 12}
_LIFETIME_HINT = "write it as 10m, 24h, 7d, 4w, 6mo, 1y, run or infinite"
_KEEP_HINT = "write it as a number of versions, like 5, or as a time, like 30d"


class Metadata(Struct, frozen=True):
    """One version. `id` is the item's: all its versions have it, and a rename keeps it.

    `size` and `sha256` are those of the content; `sha256` is None for streaming data that was appended to. `lifetime`
    and `keep` are as the caller gave them. `deleted` makes this a tombstone: the highest version of an item, once it is
    deleted, stays as one, so that its number is not used again. `renamed_to` is the name that readers must follow.
    `restored_from` is the number of the deleted version whose content this one has. `files` is the number of files of a
    version of many files: its content is the manifest, whose hash is `sha256`, and `size` is that of all its files.
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
    restored_from: int | None = None
    files: int | None = None

    @property
    def location(self) -> VersionPath:
        """Where this version is in the tree."""
        return VersionPath(self.owner.type, self.owner.model_id, self.name, self.version)

    @property
    def content_path(self) -> str:
        """The path of the content in the tree."""
        return self.location.content(self.files)

    def at(self, location: VersionPath) -> Metadata:
        """Return this as metadata of the version at a location: the path of a file outranks what the file says."""
        if self.location == location:
            return self
        owner = replace(self.owner, type=location.type, model_id=location.model_id)
        return replace(self, name=location.name, version=location.version, owner=owner)

    def to_document(self) -> dict[str, object]:
        """Return the fields of `metadata.yaml`, in their order."""
        owner = ((name, getattr(self.owner, name)) for name, _ in _OWNER_FIELDS)
        values = ((name, getattr(self, name)) for name, _ in _FIELDS)
        fields: dict[str, object] = {name: value for name, value in values if value is not None or name not in _RARE}
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
        """Check the fields of a `metadata.yaml`. Fields that a later Bayou may have added are ignored."""
        owner, tags = found.get("owner"), found.get("tags", {})
        if type(owner) is not dict:
            raise _invalid("owner", where)
        if type(tags) is not dict or not _TEXT_ONLY.issuperset(map(type, chain(tags, tags.values()))):
            raise _invalid("tags", where)
        values = _check_fields(_FIELDS, found, where)
        if not 0 <= values["size"] <= limits.SIZE_MAX:
            raise _invalid("size", where)
        if not 0 < values["version"] <= limits.VERSION_MAX:
            raise _invalid("version", where)
        if values["files"] is not None and not 0 < values["files"] <= limits.FILES_MAX:
            raise _invalid("files", where)
        return cls(owner=Owner(**_check_fields(_OWNER_FIELDS, owner, where, "owner's ")), tags=tags, **values)


class Duration(Struct, frozen=True):
    """A length of time. Months and years are calendar months and years."""

    count: int
    unit: str

    def after(self, start: datetime) -> datetime:
        """Return the moment this long after `start`; the month's last day, if the month is too short."""
        months = _MONTHS.get(self.unit)
        try:
            if months is None:
                return start + self.count * _UNITS[self.unit]
            year, month = divmod(start.year * 12 + start.month - 1 + self.count * months, 12)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            return start.replace(year=year, month=month + 1, day=day)
        except (OverflowError, ValueError):  # beyond the year 9999
            return datetime.max.replace(tzinfo=start.tzinfo)


class Keep(Struct, frozen=True):
    """How many versions of an item stay: its newest `count`, or those younger than `span`."""

    count: int | None = None
    span: Duration | None = None


Lifetime = Duration | Literal["run", "infinite"]
"""A time from a version's creation, `run` (as long as the record of its workflow run exists), or `infinite`."""


def parse_lifetime(text: str) -> Lifetime:
    """Parse a lifetime, or raise `RetentionInvalid`."""
    if text == "run":
        return "run"
    if text == "infinite":
        return "infinite"
    span = _parse_duration(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} is no lifetime", hint=_LIFETIME_HINT)
    return span


def parse_keep(text: str) -> Keep:
    """Parse a `keep`, or raise `RetentionInvalid`."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return Keep(count=int(text))
    span = _parse_duration(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} does not say how much to keep", hint=_KEEP_HINT)
    return Keep(span=span)


class Options(TypedDict, total=False):
    """Keyword arguments of `save`, `allocate` and `StagedVersions.save`."""

    content_type: str | None
    tags: Mapping[str, str]
    lifetime: str | None
    keep: str | None
    streaming: bool
    owner: Owner | None


class NewVersion(Struct, frozen=True):
    """A version that is to be saved: its item, its owner and its retention."""

    item: VersionPath
    owner: Owner
    created_at: str
    content_type: str | None
    tags: Mapping[str, str]
    lifetime: str | None
    keep: str | None
    streaming: bool

    @classmethod
    def of(cls, model: ModelRef, name: str, repo_id: str, at: str, options: Options) -> NewVersion:
        """Check the caller's options; raise `NameRefused` or `RetentionInvalid`."""
        check_item(model, name)
        lifetime, keep = options.get("lifetime"), options.get("keep")
        if lifetime is not None:
            parse_lifetime(lifetime)
        if keep is not None:
            parse_keep(keep)
        return cls(
            item=VersionPath(model.type, model.id, name, 0),
            owner=options.get("owner") or Owner.of(model, repo_id),
            created_at=at,
            content_type=options.get("content_type"),
            tags=check_tags(options.get("tags", {})),
            lifetime=lifetime,
            keep=keep,
            streaming=options.get("streaming", False),
        )

    def metadata(self, number: int, item_id: str, content: ContentInfo) -> Metadata:
        """Return the metadata of this version with a number."""
        return Metadata(
            id=item_id,
            name=self.item.name,
            version=number,
            content_type=self.content_type or content.content_type(self.item.name),
            size=content.size,
            sha256=content.sha256,
            owner=self.owner,
            created_at=self.created_at,
            tags=self.tags,
            lifetime=self.lifetime,
            keep=self.keep,
            streaming=self.streaming,
            files=content.files,
        )

    def equals(self, latest: Metadata, content: ContentInfo) -> bool:
        """Return whether this version would be what the latest one is: equal bytes and metadata, both kept for good.

        A version with a lifetime, and streaming data, is always new: its time and its appends begin anew.
        """
        wanted = self.metadata(latest.version, latest.id, content)
        infinite = (None, "infinite")
        return (
            latest.sha256 == content.sha256
            and self.lifetime in infinite
            and latest.lifetime in infinite
            and not (self.streaming or latest.streaming or latest.deleted)
            and (wanted.size, wanted.files, wanted.content_type, wanted.keep, dict(wanted.tags))
            == (latest.size, latest.files, latest.content_type, latest.keep, dict(latest.tags))
        )


def load(tree: Worktree, path: str) -> bytes | None:
    """Return the bytes of a record's file; None if the tree lacks it. Readers refuse a file that is too long."""
    try:
        with tree.open(path) as file:
            return read_at_most(file, max_bytes(path))
    except FileNotFoundError:
        return None


def metadata_at(tree: Worktree, location: VersionPath) -> Metadata | None:
    """Return the metadata of a version; None if the tree lacks it, `RecordDamaged` if it cannot be parsed."""
    data = load(tree, location.metadata)
    return None if data is None else Metadata.from_bytes(data, location.metadata).at(location)


def numbers_in(tree: Worktree, directory: str) -> list[int]:
    """Return the version numbers that the tree has of an item, visible or not, the highest first."""
    found = (version_number(name) for name in tree.names(directory))
    return sorted((number for number in found if number is not None), reverse=True)


def _check_fields(
    fields: tuple[tuple[str, tuple[type, ...]], ...], found: Mapping[str, Any], where: str, whose: str = ""
) -> dict[str, Any]:
    values = {name: found.get(name) for name, _ in fields}
    signature = (len(fields), *map(type, values.values()))
    if signature not in _accepted_types:
        for name, kinds in fields:
            if values[name] is None:
                values[name] = _DEFAULTS.get(name)
            if type(values[name]) not in kinds:  # exactly this type: bool is a subclass of int
                raise _invalid(f"{whose}{name}", where)
        _accepted_types.add((len(fields), *map(type, values.values())))
    return values


def _invalid(name: str, where: str) -> RecordDamaged:
    return RecordDamaged(
        f"{where}: its {name} is missing or wrong", hint="bayou datastore verify says whether it is what was stored"
    )


def _parse_duration(text: str) -> Duration | None:
    found = _DURATION.fullmatch(text)
    return Duration(int(found[1]), found[2]) if found else None
