"""What a caller says about data besides its content; checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from msgspec import Struct

from bayou.records.content import Measured
from bayou.records.layout import VersionPath
from bayou.records.lifetimes import parse_keep, parse_lifetime
from bayou.records.metadata import Metadata
from bayou.records.names import check_place, check_tags
from bayou.records.owner import ModelRef, Owner


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
