"""The spool: input of `data put` and `data append`, durable on this machine before the network is contacted (V22).

An input is two files of `.bayou/state/spool`: `<id>.raw` has the content, and `<id>.json`, written after it, the record
of what is to become of it. Of a directory, `<id>.raw` has the manifest, and the directory `<id>.parts` the files
(`data.manifest`). The process that works on an input holds a lock on its content, so others take only the
inputs of processes that are gone. The change set that makes a version of an input, or appends it, names the input and
removes it as its last step (`data.changes`): each input is used once, whenever a process is killed (V19).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from bayou.config.ownership import OWNER, is_foreign, owner_ids
from bayou.core import kept, limits
from bayou.core.atomic_file import fsync_directory, write_file
from bayou.core.clock import now
from bayou.core.documents import read_at_most
from bayou.core.errors import BayouError, StateError
from bayou.core.file_lock import lock_descriptor
from bayou.core.ids import is_ulid, ulid
from bayou.core.structs import Count, Malformed, Time, convert, dump_json, parse
from bayou.data.content import Content, ContentInfo, copy_measured
from bayou.data.layout import ModelRef, content_names
from bayou.data.metadata import Options
from bayou.repo import Repo
from bayou.state.freshness import RECORD, pending_inputs, spool_directory
from bayou.worktree.atomic_write import OutFile
from bayou.worktree.durability import state_errors

_RAW = ".raw"
_PARTS = ".parts"
_REFUSED = "refused"
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = "cannot keep the input"

Copy = Callable[[BinaryIO, Path], ContentInfo]
"""Copies an input to its file or, of a directory, the manifest to that file and the parts to a new directory."""


class SpoolRecord(Struct, frozen=True):
    """What is to become of an input; `owner` proves that this user made the record here (V24).

    Of a directory, `files` counts the files and `empty` the directories without any; `sha256` is that of the manifest.
    """

    command: Literal["put", "append"]
    type: str
    model_id: str
    model: str
    name: str
    size: Count
    sha256: str
    at: Time
    content_type: str | None
    tags: Mapping[str, str]
    lifetime: str | None
    keep: str | None
    streaming: bool
    always: bool
    owner: list[str]
    files: Count | None = None
    empty: Count = 0

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.type, self.model_id, self.model)

    @property
    def options(self) -> Options:
        """The options of `DataRepository.save`."""
        return Options(
            content_type=self.content_type,
            tags=self.tags,
            lifetime=self.lifetime,
            keep=self.keep,
            streaming=self.streaming,
        )


class SpooledInput:
    """One input, locked by this process until `release`. Use it as a context manager: that releases it."""

    def __init__(self, repo: Repo, number: str, record: SpoolRecord, descriptor: int) -> None:
        self.id = number
        self.record = record
        self._repo = repo
        self._descriptor: int | None = descriptor

    @property
    def path(self) -> Path:
        """The file with the content, or of a directory the manifest; it never changes."""
        return spool_directory(self._repo) / f"{self.id}{_RAW}"

    @property
    def files(self) -> Mapping[str, Path]:
        """All files with the content, by the names that they have in a version."""
        first, *parts = content_names(self.record.files)
        return {first: self.path, **{part: self.path.with_suffix(_PARTS) / part for part in parts}}

    @property
    def measured(self) -> ContentInfo:
        return ContentInfo(self.record.size, self.record.sha256, b"", self.record.files)

    @property
    def waits(self) -> bool:
        """Whether the input is still to be used: no version was made of it, and it was not dropped."""
        return os.path.lexists(spool_directory(self._repo) / f"{self.id}{RECORD}")

    def open(self) -> BinaryIO:
        """Open the content for reading."""
        return open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")

    def drop(self) -> None:
        """Remove the input; it is not used any more."""
        remove_input(self._repo, self.id)

    def refuse(self) -> Path:
        """Move an input that can never be used out of the way of the others, and return where its content is."""
        with state_errors(_FULL):
            directory = spool_directory(self._repo)
            refused = directory / _REFUSED
            refused.mkdir(mode=0o700, exist_ok=True)
            for suffix in (_RAW, _PARTS, RECORD):
                with contextlib.suppress(FileNotFoundError):
                    (directory / f"{self.id}{suffix}").rename(refused / f"{self.id}{suffix}")
            fsync_directory(refused)
            fsync_directory(directory)
        return refused / f"{self.id}{_RAW if self.record.files is None else _PARTS}"

    def release(self) -> None:
        """Let go of the input: if it still waits, another process may use it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> SpooledInput:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def receive(
    repo: Repo,
    command: Literal["put", "append"],
    model: ModelRef,
    name: str,
    content: Content,
    options: Options,
    *,
    always: bool = True,
) -> SpooledInput:
    """Copy content into the spool; it is durable when this returns. If this raises, nothing stays.

    Without `always`, a put of what equals the latest version makes no new one.
    """
    return receive_copy(
        repo, command, model, name, lambda file, _: copy_measured(content, file), options, always=always
    )


def receive_copy(
    repo: Repo,
    command: Literal["put", "append"],
    model: ModelRef,
    name: str,
    copy: Copy,
    options: Options,
    *,
    always: bool = True,
    empty: int = 0,
) -> SpooledInput:
    """Do what `receive` does, for an input that `copy` writes; it makes its parts with `create_part`."""
    kept.now("nothing was saved")
    with state_errors(_FULL):
        directory = spool_directory(repo)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(repo)  # a killed process may have left half of a large file
        number, descriptor = _create(directory)
    try:
        # Only errors of the copy are translated: an error of the caller's own content is the caller's.
        with io.BufferedWriter(OutFile(descriptor, _FULL, closefd=False)) as file:
            measured = copy(file, directory / f"{number}{_PARTS}")
        with state_errors(_FULL):
            if measured.files is not None:
                fsync_directory(directory / f"{number}{_PARTS}")
            os.fsync(descriptor)
            record = SpoolRecord(
                command=command,
                type=model.type,
                model_id=model.id,
                model=model.name,
                name=name,
                size=measured.size,
                sha256=measured.sha256,
                at=now(),
                content_type=options.get("content_type") or measured.content_type(name),
                tags=dict(options.get("tags", {})),
                lifetime=options.get("lifetime"),
                keep=options.get("keep"),
                streaming=options.get("streaming", False),
                always=always,
                owner=owner_ids(repo.state / OWNER)[:1],
                files=measured.files,
                empty=empty,
            )
            fields = {field: getattr(record, field) for field in record.__struct_fields__}
            # The record is last: with it the input counts, and the fsync of the directory covers both names.
            file_name = directory / f"{number}{RECORD}"
            write_file(file_name, dump_json(fields), mode=0o600, temporary=file_name.with_suffix(".tmp"))
            kept.now("the input is kept here: do not repeat it", go_on="bayou datastore sync")
    except BaseException:
        with contextlib.suppress(BayouError, OSError):
            remove_input(repo, number)  # a signal may come right after the record
        os.close(descriptor)
        raise
    return SpooledInput(repo, number, record, descriptor)


@contextlib.contextmanager
def create_part(path: Path) -> Iterator[BinaryIO]:
    """Yield a file of an input; it is durable when the block ends."""
    with state_errors(_FULL):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with io.BufferedWriter(OutFile(descriptor, _FULL, closefd=False)) as file:
            yield file
        with state_errors(_FULL):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def abandoned_inputs(repo: Repo) -> Iterator[SpooledInput]:
    """Yield the inputs of processes that are gone, the oldest first; each is locked until the caller asks for the next.

    What a killed process had not read to its end is deleted. `StateError` for a record that is damaged or foreign.
    """
    if not pending_inputs(repo) and not spool_directory(repo).is_dir():
        return
    _sweep(repo)
    for number in pending_inputs(repo):
        if not is_ulid(number):
            continue
        descriptor = _lock(spool_directory(repo) / f"{number}{_RAW}")
        if descriptor is None:
            continue
        try:
            record = _read(repo, number)
        except BaseException:
            os.close(descriptor)
            raise
        if record is None:
            os.close(descriptor)
            continue
        with SpooledInput(repo, number, record, descriptor) as found:
            yield found


def remove_input(repo: Repo, number: str) -> None:
    """Remove an input, durably: its record first, without which it does not count."""
    if not is_ulid(number):
        return
    directory = spool_directory(repo)
    with state_errors(_FULL):
        with contextlib.suppress(FileNotFoundError):
            (directory / f"{number}{RECORD}").unlink()
            fsync_directory(directory)  # or a power cut would bring it back, to be used again
        _remove_parts(directory / f"{number}{_PARTS}")
        (directory / f"{number}{_RAW}").unlink(missing_ok=True)


def _remove_parts(parts: Path) -> None:
    if parts.is_dir():
        import shutil  # noqa: PLC0415  (imports every compression; rarely needed)

        shutil.rmtree(parts)


def _create(directory: Path) -> tuple[str, int]:
    """Create the file of a new input, and lock it; a sweep may have deleted it between the two."""
    while True:
        number = ulid()
        path = directory / f"{number}{_RAW}"
        descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        if lock_descriptor(descriptor) and os.fstat(descriptor).st_nlink:
            return number, descriptor
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Lock the content of an input; None if another process has it, or it is gone."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    if lock_descriptor(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _read(repo: Repo, number: str) -> SpoolRecord | None:
    """Read a record under the input's lock; None if the input was used meanwhile."""
    path = spool_directory(repo) / f"{number}{RECORD}"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = parse(read_at_most(file, limits.METADATA_BYTES), limits.METADATA_BYTES)
            record = convert(found, SpoolRecord, optional=("files", "empty"))
    except FileNotFoundError:
        return None
    except (Malformed, OSError) as error:
        raise StateError(
            f"the input {number} cannot be read: {error}",
            hint=f"look at .bayou/state/spool/{number}.raw, and remove it and {number}.json",
        ) from None
    if is_foreign(owner_ids(repo.state / OWNER), record.owner):
        raise StateError(  # V24: Git may have put it there
            f"the input {number} was not given by you on this machine, so it is not used",
            hint=f"look at .bayou/state/spool/{number}.raw, and remove it and {number}.json",
        )
    return record


def _sweep(repo: Repo) -> None:
    """Delete what killed processes had not read to its end: content without a record that no process holds."""
    directory = spool_directory(repo)
    complete = set(pending_inputs(repo))
    for name in os.listdir(directory):
        number, _, suffix = name.rpartition(".")
        if suffix not in ("raw", "tmp", "parts") or number in complete:
            continue
        descriptor = _lock(directory / f"{number}{_RAW}")
        if descriptor is None and (directory / f"{number}{_RAW}").exists():
            continue
        with contextlib.suppress(OSError):
            if not os.path.lexists(directory / f"{number}{RECORD}"):
                if suffix == "parts":
                    _remove_parts(directory / name)
                else:
                    (directory / name).unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)
