"""Finding one version of an item, by way of the names that it had before."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import DataNotFound, TooManyRenames
from bayou.records.catalog.rows import VersionRow
from bayou.records.context import Context
from bayou.records.layout import VersionPath
from bayou.records.metadata import Metadata
from bayou.records.names import check_place
from bayou.records.owner import ModelRef, Owner

MOST_HOPS = 5


class Item(Struct, frozen=True):
    """A version that was found. `forwarded` has the names that led to it, the one that was asked for first.

    `path` is that of its content, within the tree.
    """

    metadata: Metadata
    forwarded: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.metadata.place.raw


def find_item(context: Context, model: ModelRef, name: str, version: int | None) -> Item:
    """Return a version of an item, the newest unless one is named; `DataNotFound` if there is none.

    A name that was renamed forwards, at most five times (`TooManyRenames`): which also ends what two machines made a
    circle of.
    """
    forwarded: list[str] = []
    current = name
    while True:
        check_place(model, current)
        found = _look(context, VersionPath(model.type, model.id, current, 0), version)
        if found is None or found.renamed_to is None:
            break
        forwarded.append(current)
        if len(forwarded) > MOST_HOPS:
            raise TooManyRenames(
                f"{name} of {model.name} was renamed more than {MOST_HOPS} times: {', '.join(forwarded)}, …",
                hint=f"ask for {found.renamed_to}, or for what it is called now: bayou data list {model.name}",
            )
        current = found.renamed_to
    if found is None or found.deleted:
        raise not_found(model, name, version, deleted=found is not None)
    return Item(found, tuple(forwarded))


def not_found(model: ModelRef, name: str, version: int | None, *, deleted: bool = False) -> DataNotFound:
    """Say that an item or a version is not there."""
    what = f"{name} of {model.name}" if version is None else f"version {version} of {name} of {model.name}"
    if version is None:
        return DataNotFound(
            f"{what} was deleted" if deleted else f"there is no {what}",
            hint=f"see what there is with `bayou data list {model.name}`",
        )
    return DataNotFound(f"there is no {what}", hint=f"see its versions with `bayou data versions {model.name} {name}`")


def _look(context: Context, item: VersionPath, version: int | None) -> Metadata | None:
    """Return a version, or (None) the newest that is not deleted, or the mark that a deleted item left.

    A number that is not there leads to the mark, which may say where all numbers went.
    """
    if version is None:
        return _newest(context, item)
    found = _one(context, replace(item, version=version))
    if found is not None and not found.deleted:
        return found
    mark = _newest(context, item)
    return mark if mark is not None and mark.deleted and mark.renamed_to else None


def _newest(context: Context, item: VersionPath) -> Metadata | None:
    mark: Metadata | None = None
    for number in context.numbers(item.item):
        found = context.metadata(replace(item, version=number))
        if found is not None and not found.deleted:
            return found
        mark = mark or found
    if mark is not None:
        return mark
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(item) if row.latest), None)


def _one(context: Context, place: VersionPath) -> Metadata | None:
    found = context.metadata(place)
    if found is not None:
        return found
    # What was not pulled, or was lost here, is known by its row; its content can be fetched.
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(place) if row.version == place.version), None)


def metadata_of(row: VersionRow) -> Metadata:
    """Return what a row of the catalog says, as metadata."""
    owner = Owner(
        row.model, row.model_id, row.type, row.repo or "", row.output, row.run, row.workflow, row.job, row.step
    )
    return Metadata(
        id=row.id,
        name=row.name,
        version=row.version,
        content_type=row.content_type,
        size=row.size,
        sha256=row.sha256,
        owner=owner,
        created_at=row.created_at,
        tags=row.tags,
        lifetime=row.lifetime,
        keep=row.keep,
        streaming=row.streaming,
        deleted=row.deleted,
        renamed_to=row.renamed_to,
    )
