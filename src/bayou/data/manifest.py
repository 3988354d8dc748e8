"""A version of many files: `<n>/metadata.yaml`, `<n>/manifest.json` and `<n>/part-00000…`, flat, one unit.

The manifest lists the files by name, in order, each with its part, size and SHA-256; `rows` is for writers that know
how many rows a part has. The metadata has the hash of the manifest, so one hash proves the version. A part belongs to
this version alone. Names of files are names for people: only a directory that a user writes has them, never the tree.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from msgspec import Meta, Struct
from msgspec.structs import asdict

from bayou.core import limits, paths
from bayou.core.errors import ContentDamaged, NameRefused, RecordDamaged, UsageError
from bayou.core.ids import ulid
from bayou.core.structs import Malformed, check_object, convert, parse, require_field
from bayou.data.content import ContentInfo, copy_measured
from bayou.data.context import DataContext
from bayou.data.items import Item, damage_hint, fetch_content
from bayou.data.layout import MANIFEST, ModelRef, part_name
from bayou.data.metadata import NewVersion, Options
from bayou.data.spool import SpooledInput, create_part, receive_copy
from bayou.data.staging import SaveResult, equal_latest, publish_version
from bayou.repo import LOCAL, Repo

_FORMAT = 1
_HASH = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_SIZE = Annotated[int, Meta(ge=0, le=limits.SIZE_MAX)]


class ManifestFile(Struct, frozen=True):
    """One file: its name, a relative path with `/`, and the part of the version that has its bytes."""

    name: str
    part: str
    size: _SIZE
    sha256: _HASH
    rows: Annotated[int, Meta(ge=0)] | None = None


class Manifest(Struct, frozen=True):
    """The files of a version, in order of their names; at least one."""

    files: tuple[ManifestFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the content of `manifest.json`: the same files make the same bytes."""
        rows = ",\n".join(json.dumps(asdict(file), ensure_ascii=False) for file in self.files)
        return f'{{"format": {_FORMAT}, "files": [\n{rows}\n]}}\n'.encode()

    def write(self, file: BinaryIO) -> ContentInfo:
        """Write `manifest.json`, and return the size of all files, and the manifest's hash."""
        return ContentInfo(self.size, copy_measured(self.to_bytes(), file).sha256, b"", len(self.files))


class SourceFiles(Struct, frozen=True):
    """The files below a directory, by relative name in order, and how many empty directories there are."""

    names: tuple[str, ...]
    empty: int


def save_directory(context: DataContext, version: NewVersion, source: Path, *, always: bool, alone: bool) -> SaveResult:
    """Save all files below a directory as one version: whole and durable when this returns, or nothing.

    Without `always`, a version that would equal the latest one is not saved; `alone` as for `equal_latest`.
    """
    found = source_files(source, context.repo)
    with context.tree.stage_directory(version.item.item) as directory:
        manifest = _copy_files(source, found, directory.writing)
        with directory.writing(MANIFEST) as file:
            measured = manifest.write(file)
        latest = None if always else equal_latest(context, version, measured, alone=alone)
        if latest is not None:
            return SaveResult(latest, unchanged=True, empty=found.empty)
        return SaveResult(publish_version(context, version, directory, measured), empty=found.empty)


def receive_directory(
    repo: Repo, model: ModelRef, name: str, source: Path, options: Options, *, always: bool
) -> SpooledInput:
    """Copy all files below a directory into the spool, as `spool.receive` does with the content of one file (V22)."""
    found = source_files(source, repo)

    def copy(file: BinaryIO, parts: Path) -> ContentInfo:
        return _copy_files(source, found, lambda part: create_part(parts / part)).write(file)

    return receive_copy(repo, "put", model, name, copy, options, always=always, empty=found.empty)


def source_files(source: Path, repo: Repo) -> SourceFiles:
    """Return the files of a directory that is to be saved; raise before anything is copied if one cannot be.

    A directory with this repo's own state or data in it is refused: a version would contain itself.
    """
    real = Path(os.path.realpath(source))
    for own in (Path(os.path.realpath(repo.root / LOCAL)), Path(os.path.realpath(repo.tree_root))):
        if own.is_relative_to(real) or real.is_relative_to(own):
            raise UsageError(f"{source} has this repo's own data in it", hint="save a directory below it")
    names: list[str] = []
    empty = 0
    for folder, inner in _walk(source):
        if not inner:
            empty += 1
        for name, mode in inner:
            where = f"{folder}{name}"
            why = paths.unsafe(where) or _kind(mode)
            if why is not None:
                raise NameRefused(
                    f"{source}: {_shown(where)} cannot be saved: {why}",
                    hint="rename it, or move it out of the directory",
                )
            if stat.S_ISREG(mode):
                names.append(where)
        if len(names) > limits.FILES_MAX:
            raise UsageError(
                f"{source} has more than {limits.FILES_MAX:,} files", hint="save it in several parts, or as an archive"
            )
    if not names:
        raise UsageError(f"{source} has no files", hint="a version has at least one file")
    folded: dict[str, str] = {}
    for name in sorted(names):
        other = folded.setdefault(name.casefold(), name)
        if other != name:  # V21: on some file systems they are one file
            raise NameRefused(f"{source}: {other} and {name} differ only in case", hint="rename one of them")
    return SourceFiles(tuple(sorted(names)), empty)


def _walk(source: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield each directory (its relative path, with a slash) with the names and modes in it; links are not followed."""
    todo = [""]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(source / folder) as entries:
                inner = [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
        except OSError as error:
            raise UsageError(f"cannot read {source / folder}: {error.strerror}") from None
        yield folder, inner
        todo += [f"{folder}{name}/" for name, mode in inner if stat.S_ISDIR(mode)]


def _kind(mode: int) -> str | None:
    """Return why a file of this kind cannot be saved; None if it can."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return "it is a symbolic link" if stat.S_ISLNK(mode) else "it is no regular file"


def _copy_files(
    source: Path, found: SourceFiles, create: Callable[[str], AbstractContextManager[BinaryIO]]
) -> Manifest:
    """Copy the files of a directory to parts, each of which `create` makes; return their manifest."""
    return Manifest(tuple(_copy(source, name, part_name(at), create) for at, name in enumerate(found.names)))


def _copy(
    source: Path, name: str, part: str, create: Callable[[str], AbstractContextManager[BinaryIO]]
) -> ManifestFile:
    """Copy a file to a part; the manifest has the hash of the bytes that were copied."""
    try:
        # A link that came since the walk is refused, and a FIFO does not wait for its writer.
        opened = os.open(source / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"cannot read {source / name}: {error.strerror}") from None
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise NameRefused(f"{source / name} cannot be saved: it is no regular file")
        with create(part) as target:
            measured = copy_measured(file, target)
    return ManifestFile(name, part, measured.size, measured.sha256)


def parse_manifest(data: bytes, item: Item) -> Manifest:
    """Return the manifest of a version; `RecordDamaged` unless it is one that can be written to a directory (V25)."""
    try:
        fields = parse(data, limits.MANIFEST_BYTES)
        rows = require_field(fields, "files")
        if fields.get("format") != _FORMAT or not isinstance(rows, list):
            raise Malformed("it has another format")
        files = tuple(_parse_file(check_object(row, f"files[{at}]"), at) for at, row in enumerate(rows))
    except Malformed as error:
        raise _damaged(item, str(error)) from None
    made = Manifest(files)
    if len(files) != item.metadata.files or made.size != item.metadata.size:
        raise _damaged(item, "it does not list the files that the metadata counts")
    if len({file.name for file in files}) != len(files):
        raise _damaged(item, "it names a file twice")
    return made


def _parse_file(fields: Mapping[str, Any], at: int) -> ManifestFile:
    file = convert(fields, ManifestFile, f"files[{at}]", optional=("rows",))
    why = paths.unsafe(file.name)
    if why is not None:
        raise Malformed(f"files[{at}].name is unsafe: {why}")  # V21
    if file.part != part_name(at):
        raise Malformed(f"files[{at}].part is not {part_name(at)}")
    return file


def write_directory(context: DataContext, item: Item, manifest: Manifest, target: Path) -> Manifest:
    """Write the files of a version to a directory that does not exist or is empty: all of them, proved, or none."""
    _check_target(target)
    fetch_content(context, item.metadata)
    staged = target.with_name(f".bayou-{ulid()}.tmp")
    try:
        staged.mkdir()
        for file in manifest.files:
            path = staged / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                context.tree.open(f"{item.metadata.location.directory}/{file.part}") as source,
                path.open("xb") as copy,
            ):
                measured = copy_measured(source, copy)
            if (measured.size, measured.sha256) != (file.size, file.sha256):
                raise ContentDamaged(
                    f"{file.name} of {item.metadata.name} is not what was saved: its SHA-256 is another one",
                    hint=damage_hint(context, f"{item.metadata.location.directory}/{file.part}"),
                )
        staged.rename(target)  # onto nothing, or onto an empty directory
    except FileExistsError:
        raise _damaged(item, "this file system takes two of its names for one") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return manifest


def _check_target(target: Path) -> None:
    if os.path.lexists(target) and (not target.is_dir() or target.is_symlink() or any(target.iterdir())):
        raise UsageError(f"{target} exists, and is no empty directory", hint="name a directory that is not there yet")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", hint="make it first")


def _damaged(item: Item, why: str) -> RecordDamaged:
    return RecordDamaged(
        f"{item.path} cannot be used: {why}", hint="bayou datastore verify says whether it is what was stored"
    )


def _shown(name: str) -> str:
    return json.dumps(name, ensure_ascii=not name.isprintable())
