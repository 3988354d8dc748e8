"""Nodes in a directory of this machine: a cache of a store's, and the home of trees that exist only here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bayou.core.atomic_file import fsync_directory, fsync_file
from bayou.core.errors import NodeMissing
from bayou.core.ids import ulid
from bayou.index import codec
from bayou.index.node import Node, Ref, digest_of
from bayou.index.staging import NodeFile, Staging

T = TypeVar("T")
R = TypeVar("R")


class NodeFiles:
    """The files of nodes. A leaf's is named by its digest alone, a branch's by its whole name.

    Two branches of one digest hold the same entries but may name their children differently, and only the names that
    its own commit wrote are sure to exist: sharing a branch by digest would lead to nodes that were collected.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, level: int, named: str) -> bytes | None:
        """Return a file's bytes, or None if there is no such file; whether they are good is for the caller to prove."""
        try:
            return self._path(level, named).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, files: Sequence[NodeFile], *, durable: bool) -> None:
        """Write nodes, each whole or not at all; if `durable`, they survive a power cut once this returns."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made: list[tuple[Path, Path]] = []
        try:
            for file in files:
                temporary = self._directory / f".bayou-{ulid()}.tmp"
                made.append((temporary, self._path(file.level, file.name)))
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                    opened.write(file.data)
            if durable:
                # After all of them are written: then the first call does most of the work for the others.
                for temporary, _ in made:
                    fsync_file(temporary)
            for temporary, final in made:
                temporary.replace(final)
        finally:
            for temporary, _ in made:
                temporary.unlink(missing_ok=True)  # V14
        if durable:
            fsync_directory(self._directory)

    def _path(self, level: int, named: str) -> Path:
        return self._directory / f"{named if level else digest_of(named).hex()}.parquet"


class LocalNodes(Staging):
    """A source and sink of nodes in one directory; what it saves is named after `commit`.

    A tree that lives here is changed by `merge`, also when it becomes equal to a tree of the store: then every node of
    it has been written here, and it can be read without the store.
    """

    def __init__(self, files: NodeFiles, commit: str) -> None:
        super().__init__(commit)
        self._files = files

    def load(self, level: int, ref: Ref) -> Node:
        data = self._files.read(level, ref.node)
        if data is None:
            raise NodeMissing(
                f"index node {ref.node} is missing in the local state",
                hint="`bayou datastore sync` compares this directory with the store anew",
            )
        return codec.decode(data, level, ref, ours=True)

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        return map(fn, items)

    def _keep(self, files: Sequence[NodeFile]) -> Sequence[NodeFile]:
        self._files.write(files, durable=True)
        return files
