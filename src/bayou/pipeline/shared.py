"""Whether workers see a directory of this machine: asked of them, before a job that needs it begins."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from bayou.errors import SparkNotShared, TreeError
from bayou.pipeline.arrow import TEXT, ddl
from bayou.pipeline.server.environment import is_local
from bayou.pipeline.session import log_of
from bayou.quick import dataclass
from bayou.store.url import parse_url
from bayou.tree.draft import temporary_name

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_LOOKS = 64
"""Tasks that look: each takes as long as a worker takes to start, so every executor with a free core gets some."""

_BLIND = pyarrow.schema({"host": TEXT})


def require_shared(spark: SparkSession, path: Path, what: str) -> None:
    """Raise `SparkNotShared` unless the workers of a session see this machine's directory `path`, as `what` is called.

    A server of ours with a local master has its workers here: then nothing is asked. Elsewhere a file with a random
    word is put there, and tasks, spread over the executors, must read that word.
    """
    if on_this_machine(spark):
        return
    marker, word = path / temporary_name(), secrets.token_hex(16)
    try:
        # Readable for whomever the workers run as: whether they may read the rest is theirs to say, file by file.
        with open(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write(word)
    except OSError as error:
        raise TreeError(f"cannot write to {path}: {error.strerror or error}") from None
    try:
        _ask(spark, Look(str(marker), word), path, what)
    finally:
        marker.unlink(missing_ok=True)


def require_store(spark: SparkSession, url: str, *, writes: bool = False) -> None:
    """Raise `SparkNotShared` where a store is a directory that the workers of a session do not see.

    They would take it for an empty one. Only whoever is going to write to it puts a file there to find out (V15);
    otherwise its directories must have the same names and numbers everywhere.
    """
    place = parse_url(url)
    if place.scheme != "file" or on_this_machine(spark):
        return
    if writes:
        require_shared(spark, Path(place.bucket), "the store")
    else:
        _ask(spark, LookInto(place.bucket, _directories(place.bucket)), Path(place.bucket), "the store")


def on_this_machine(spark: SparkSession) -> bool:
    """Say whether all workers of a session run on this machine, as this user: a local master of our own server."""
    return log_of(spark) is not None and is_local(str(spark.conf.get("spark.master", "")))


def _ask(spark: SparkSession, look: Look | LookInto, path: Path, what: str) -> None:
    looked = spark.range(0, _LOOKS, 1, _LOOKS).mapInArrow(look, ddl(_BLIND))
    blind = sorted(row["host"] for row in looked.distinct().collect())
    if blind:
        raise SparkNotShared(
            f"the workers of this Spark on {', '.join(blind[:3])} do not see {what} ({path}): "
            "it must be on a file system that all of them share, under the same path",
            hint="put it on such a file system, or leave out [spark] in bayou.toml to work on this machine",
        )


@dataclass(frozen=True, slots=True)
class Look:
    """A kernel: whatever comes in, tell the name of this host unless the marker is here and says the word."""

    marker: str
    word: str

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            pass
        if not self._sees():
            yield _here()

    def _sees(self) -> bool:
        try:
            return Path(self.marker).read_text() == self.word
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class LookInto:
    """A kernel: whatever comes in, tell the name of this host unless the directory has these directories here too."""

    directory: str
    inside: frozenset[tuple[str, int]]

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            pass
        if not self.inside <= _directories(self.directory):
            yield _here()


def _directories(path: str) -> frozenset[tuple[str, int]]:
    """Return name and number of the directories that lie in a directory; nothing where it cannot be read."""
    try:
        with os.scandir(path) as found:
            return frozenset((one.name, one.inode()) for one in found if one.is_dir(follow_symlinks=False))
    except OSError:
        return frozenset()


def _here() -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"host": [os.uname().nodename]}, schema=_BLIND)
