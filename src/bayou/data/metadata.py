"""What is known of one version of an item: its `metadata.yaml`. A version is there if and only if this file is.

How long data is meant to live: `lifetime` and `keep`, as people write them.

What a caller says about data besides its content; checked before anything is written.

What the files that are on this machine say of versions: nothing but a tree is needed to ask.
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
from bayou.data.content import Measured
from bayou.data.layout import ModelRef, Owner, VersionPath, check_place, check_tags, most_bytes, version_number
from bayou.worktree.tree import Worktree


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


_SPAN = re.compile(r"([1-9][0-9]{0,5})(m|h|d|w|mo|y)", re.ASCII)
_FIXED = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_MONTHS = {"mo": 1, "y": 12}
_LIFETIME_HINT = "write it as 10m, 24h, 7d, 4w, 6mo, 1y, run or infinite"
_KEEP_HINT = "write it as a number of versions, like 5, or as a time, like 30d"


class Duration(Struct, frozen=True):
    """A length of time. Months and years are those of the calendar."""

    count: int
    unit: str

    def after(self, start: datetime) -> datetime:
        """Return the moment this long after `start`; the last day of a month that is too short for its day."""
        months = _MONTHS.get(self.unit)
        try:
            if months is None:
                return start + self.count * _FIXED[self.unit]
            year, month = divmod(start.year * 12 + start.month - 1 + self.count * months, 12)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            return start.replace(year=year, month=month + 1, day=day)
        except (OverflowError, ValueError):  # beyond the year 9999
            return datetime.max.replace(tzinfo=start.tzinfo)


class Keep(Struct, frozen=True):
    """How much of an item stays: its newest `count` versions, or those younger than `span`."""

    count: int | None = None
    span: Duration | None = None


Lifetime = Duration | Literal["run", "infinite"]
"""A time from a version's creation; `run`: as long as the record of its workflow run exists; or for ever."""


def parse_lifetime(text: str) -> Lifetime:
    """Return what a lifetime means, or raise `RetentionInvalid`."""
    if text == "run":
        return "run"
    if text == "infinite":
        return "infinite"
    span = _span(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} is no lifetime", hint=_LIFETIME_HINT)
    return span


def parse_keep(text: str) -> Keep:
    """Return what a `keep` means, or raise `RetentionInvalid`."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return Keep(count=int(text))
    span = _span(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} does not say how much to keep", hint=_KEEP_HINT)
    return Keep(span=span)


def _span(text: str) -> Duration | None:
    found = _SPAN.fullmatch(text)
    return Duration(int(found[1]), found[2]) if found else None


class Options(TypedDict, total=False):
    """What `save`, `allocate` and `Stage.save` take by name."""

    content_type: str | None
    tags: Mapping[str, str]
    lifetime: str | None
    keep: str | None
    streaming: bool
    owner: Owner | None


class Terms(Struct, frozen=True):
    """One version to be: whose, under which name, and how it is to be kept."""

    item: VersionPath
    owner: Owner
    created_at: str
    content_type: str | None
    tags: Mapping[str, str]
    lifetime: str | None
    keep: str | None
    streaming: bool

    @classmethod
    def of(cls, model: ModelRef, name: str, repo_id: str, at: str, options: Options) -> Terms:
        """Check what was said; `NameRefused` or `RetentionInvalid` where it cannot be."""
        check_place(model, name)
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

    def metadata(self, number: int, item_id: str, content: Measured) -> Metadata:
        """Return the metadata of this version under a number."""
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
        )


def load(tree: Worktree, path: str) -> bytes | None:
    """Return the bytes of a record's file; None if it is not here. Of too long a file the readers refuse what comes."""
    try:
        with tree.open(path) as file:
            return read_at_most(file, most_bytes(path))
    except FileNotFoundError:
        return None


def metadata_at(tree: Worktree, place: VersionPath) -> Metadata | None:
    """Return what is known of a version; None if there is none here, `RecordDamaged` if nobody can tell."""
    data = load(tree, place.metadata)
    return None if data is None else Metadata.from_bytes(data, place.metadata).at(place)


def numbers_in(tree: Worktree, directory: str) -> list[int]:
    """Return the numbers of an item that are taken here, visible or not, the highest first."""
    found = (version_number(name) for name in tree.names(directory))
    return sorted((number for number in found if number is not None), reverse=True)
