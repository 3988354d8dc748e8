"""Whether workers see a directory of this machine: each proves it, before a job that needs the directory begins.

A kernel is told where to look and never what is there. Its answer is a hash that only a process that has looked can
compute. A server that answers nothing, or anything else, has not proved it.

One store client for each process of Spark, however many of its tasks come by (`engine.handle`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from msgspec import Struct

from bayou.core.errors import SparkNotShared, TreeError
from bayou.engine.handle import store_of
from bayou.objectstore.url import parse_url
from bayou.spark.arrow import INT, TEXT, batch, batches, ddl, rows
from bayou.spark.server.identity import is_local
from bayou.spark.session import log_of
from bayou.worktree.atomic_write import temporary_name

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

QUESTIONS = 1 << 16
"""Numbers that tasks answer for, each a run of them: more than any cluster has cores."""

_TASKS = 64
"""Tasks that look where Spark does not divide by the cores that it has: each takes as long as a worker takes to start,
so every executor with a free core gets some."""

_DIVIDED_BY = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")

_NAMED = 16
"""How many directories of a store a worker must know."""

ANSWERS = pyarrow.schema({"first": INT, "last": INT, "host": TEXT, "proof": TEXT})


def require_shared(spark: SparkSession, path: Path, what: str) -> None:
    """Raise `SparkNotShared` unless the workers of a session see this machine's directory `path`, as `what` is called.

    A server of ours with a local master has its workers here: then nothing is asked. Elsewhere a file with a random
    word is put there, and every task, spread over the executors, must prove that it has read that word.
    """
    if on_this_machine(spark):
        return
    marker, word = path / temporary_name(), secrets.token_bytes(32)
    try:
        # Readable for whomever the workers run as: whether they may read the rest is theirs to say, file by file.
        with open(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(word)
    except OSError as error:
        raise TreeError(f"cannot write to {path}: {error.strerror or error}") from None
    try:
        _require(spark, ReadMarker(str(marker), secrets.token_hex(16)), word, path, what)
    finally:
        marker.unlink(missing_ok=True)


def require_store(spark: SparkSession, url: str, *, writes: bool = False) -> None:
    """Raise `SparkNotShared` where a store is a directory that the workers of a session do not see.

    They would take it for an empty one. Only whoever is going to write to it puts a file there to find out (V15);
    otherwise it and the directories in it must have the same numbers everywhere, which every task must prove to know.
    """
    place = parse_url(url)
    if place.scheme != "file" or on_this_machine(spark):
        return
    path = Path(place.bucket)
    if writes:
        require_shared(spark, path, "the store")
        return
    names = _directories(path)
    _require(spark, ReadNumbers(str(path), names, secrets.token_hex(16)), _numbers(path, names), path, "the store")


def on_this_machine(spark: SparkSession) -> bool:
    """Say whether all workers of a session run on this machine, as this user: a local master of our own server."""
    return log_of(spark) is not None and is_local(str(spark.conf.get("spark.master", "")))


def _require(spark: SparkSession, look: ReadMarker | ReadNumbers, secret: bytes, path: Path, what: str) -> None:
    """Let every executor answer, and compare the answers with those of somebody who knows the secret."""
    asked = spark.range(0, QUESTIONS, 1, _tasks(spark)).mapInArrow(look, ddl(ANSWERS))
    blind = unproved(batches(spark, asked), secret, look.nonce)
    if blind is not None:
        named = ", ".join(sorted(host for host in blind if _HOST.fullmatch(host))[:3])
        who = f"on {named} do not" if named else "have not proved that they"
        raise SparkNotShared(
            f"the workers of this Spark {who} see {what} ({path}): "
            "it must be on a file system that all of them share, under the same path",
            hint="put it on such a file system, or leave out [spark] in bayou.toml to work on this machine",
        )


def _tasks(spark: SparkSession) -> int | None:
    """Return into how many tasks the questions are divided; None if Spark makes one for each core that it has."""
    told = [spark.conf.get(name, None) for name in _DIVIDED_BY]
    numbers = [int(number) for number in told if number and number.isdecimal()]
    if numbers or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return max([_TASKS, *numbers])  # an executor that is yet to come comes for a task that waits
    return None


def unproved(found: Iterable[pyarrow.RecordBatch], secret: bytes, nonce: str) -> set[str] | None:
    """Return the hosts that do not know the secret, which are none where questions are left open; None if all do."""
    answers: list[tuple[Any, ...]] = []
    for one in found:
        if not one.schema.equals(ANSWERS) or len(answers) > QUESTIONS:
            return set()  # not what the kernel says
        answers += rows(one, ANSWERS.names)
    blind = {str(host) for first, last, host, answer in answers if answer != proof(secret, nonce, first, last)}
    if blind:
        return blind
    following = 0
    for first, last, _, _ in sorted(answers):
        if first != following or last < first:
            return set()
        following = last + 1
    return None if following == QUESTIONS else set()


def proof(secret: bytes, nonce: str, first: int | None, last: int | None) -> str:
    """Return what a task that knows the secret answers: it is good for one look, and for these questions of it."""
    return hmac.new(secret, f"{nonce}:{first}:{last}".encode(), hashlib.sha256).hexdigest()


class ReadMarker(Struct, frozen=True):
    """A kernel: whatever numbers come in, prove that the marker is here."""

    marker: str
    nonce: str

    def __call__(self, found: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        try:
            secret = Path(self.marker).read_bytes()
        except OSError:
            secret = b""
        return _answers(found, secret, self.nonce)


class ReadNumbers(Struct, frozen=True):
    """A kernel: whatever numbers come in, prove that the directory is the same one here."""

    directory: str
    names: tuple[str, ...]
    nonce: str

    def __call__(self, found: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return _answers(found, _numbers(Path(self.directory), self.names), self.nonce)


def _answers(found: Iterator[pyarrow.RecordBatch], secret: bytes, nonce: str) -> Iterator[pyarrow.RecordBatch]:
    """Answer once for all the questions of a task, which are consecutive numbers."""
    asked = [number for one in found for number in one.column(0).to_pylist()]
    if asked:
        first, last = asked[0], asked[-1]
        answer = (first, last, os.uname().nodename, proof(secret, nonce, first, last))
        yield batch(ANSWERS, [[value] for value in answer])


def _directories(path: Path) -> tuple[str, ...]:
    """Return the names of some directories that lie in a directory; none where it cannot be read."""
    try:
        with os.scandir(path) as found:
            return tuple(sorted(one.name for one in found if one.is_dir(follow_symlinks=False))[:_NAMED])
    except OSError:
        return ()


def _numbers(path: Path, names: tuple[str, ...]) -> bytes:
    """Return the inode numbers of a directory and of those in it; a file system that is shared has the same for all."""
    return ",".join(str(_number(one)) for one in (path, *(path / name for name in names))).encode()


def _number(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


__all__ = ["store_of"]
