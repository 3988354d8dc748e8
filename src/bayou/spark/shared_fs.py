"""Check that Spark's workers see a directory of this machine, before a job starts that needs it.

A kernel knows where to read and not what is there. Its answer is a hash that only a process can compute that has read
the marker file or the inode numbers. A server that answers nothing, or anything else, has not proved that it sees the
directory.
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
from bayou.objectstore.url import parse_url
from bayou.spark.arrow import INT, TEXT, batch, batches, ddl, rows
from bayou.spark.server.identity import is_local
from bayou.spark.session import log_of
from bayou.worktree.atomic_write import temporary_name

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

QUESTIONS = 1 << 16
"""How many numbers the tasks of a check get together, each a consecutive range: more than any cluster has cores."""

_TASKS = 64
"""Tasks of a check if Spark does not make one for each core: each takes as long as the start of a worker, so that every
executor with a free core gets some."""

_PARALLELISM = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")

_MOST_DIRECTORIES = 16
"""How many directories of a store a worker must see."""

ANSWERS = pyarrow.schema({"first": INT, "last": INT, "host": TEXT, "proof": TEXT})


def require_shared(spark: SparkSession, path: Path, what: str) -> None:
    """Raise `SparkNotShared` unless the workers of a session see this machine's directory `path`; `what` names it.

    The workers of Bayou's own server with a local master run here, so that there is nothing to check. Otherwise this
    writes a file with a random word there, and each of many tasks, spread over the executors, must prove that it has
    read the word.
    """
    if on_this_machine(spark):
        return
    marker, word = path / temporary_name(), secrets.token_bytes(32)
    try:
        # Readable for the workers' user, which may be another one; access to the other files is checked on each read.
        with open(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(word)
    except OSError as error:
        raise TreeError(f"cannot write to {path}: {error.strerror or error}") from None
    try:
        _require(spark, ReadMarker(str(marker), secrets.token_hex(16)), word, path, what)
    finally:
        marker.unlink(missing_ok=True)


def require_store(spark: SparkSession, url: str, *, writes: bool = False) -> None:
    """Raise `SparkNotShared` if a store is a directory that the workers of a session do not see.

    They would take it for an empty store. For a job that writes to the store, the check writes a file there (V15).
    Otherwise each task must prove that the directory and those in it have the same inode numbers as here.
    """
    location = parse_url(url)
    if location.scheme != "file" or on_this_machine(spark):
        return
    path = Path(location.bucket)
    if writes:
        require_shared(spark, path, "the store")
        return
    names = _directories(path)
    _require(spark, ReadNumbers(str(path), names, secrets.token_hex(16)), _numbers(path, names), path, "the store")


def on_this_machine(spark: SparkSession) -> bool:
    """Return whether all workers run on this machine as this user: Bayou's own server with a local master."""
    return log_of(spark) is not None and is_local(str(spark.conf.get("spark.master", "")))


def _require(spark: SparkSession, kernel: ReadMarker | ReadNumbers, secret: bytes, path: Path, what: str) -> None:
    """Run a kernel on all executors, and raise `SparkNotShared` unless each answer proves knowledge of the secret."""
    answers = spark.range(0, QUESTIONS, 1, _tasks(spark)).mapInArrow(kernel, ddl(ANSWERS))
    blind = unproved(batches(spark, answers), secret, kernel.nonce)
    if blind is not None:
        named = ", ".join(sorted(host for host in blind if _HOST.fullmatch(host))[:3])
        workers = f"on {named} do not" if named else "have not proved that they"
        raise SparkNotShared(
            f"the workers of this Spark {workers} see {what} ({path}): "
            "it must be on a file system that all of them share, under the same path",
            hint="put it on such a file system, or leave out [spark] in bayou.toml to work on this machine",
        )


def _tasks(spark: SparkSession) -> int | None:
    """Return the number of tasks of a check; None if Spark makes one for each core that it has."""
    configured = [spark.conf.get(name, None) for name in _PARALLELISM]
    numbers = [int(number) for number in configured if number and number.isdecimal()]
    if numbers or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return max([_TASKS, *numbers])  # waiting tasks make Spark allocate more executors
    return None


def unproved(found: Iterable[pyarrow.RecordBatch], secret: bytes, nonce: str) -> set[str] | None:
    """Return the hosts that did not prove knowledge of the secret; None if all answers prove it.

    The set is empty if the answers do not cover all numbers, or are malformed.
    """
    answers: list[tuple[Any, ...]] = []
    for answer in found:
        if not answer.schema.equals(ANSWERS) or len(answers) > QUESTIONS:
            return set()  # the kernel did not answer this
        answers += rows(answer, ANSWERS.names)
    blind = {str(host) for first, last, host, proved in answers if proved != proof(secret, nonce, first, last)}
    if blind:
        return blind
    following = 0
    for first, last, _, _ in sorted(answers):
        if first != following or last < first:
            return set()
        following = last + 1
    return None if following == QUESTIONS else set()


def proof(secret: bytes, nonce: str, first: int | None, last: int | None) -> str:
    """Return the proof of a task that knows the secret, for one check (`nonce`) and one range of numbers."""
    return hmac.new(secret, f"{nonce}:{first}:{last}".encode(), hashlib.sha256).hexdigest()


class ReadMarker(Struct, frozen=True):
    """A kernel: prove that this worker can read the marker file."""

    marker: str
    nonce: str

    def __call__(self, found: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        try:
            secret = Path(self.marker).read_bytes()
        except OSError:
            secret = b""
        return _answers(found, secret, self.nonce)


class ReadNumbers(Struct, frozen=True):
    """A kernel: prove that the directory has the same inode numbers for this worker."""

    directory: str
    names: tuple[str, ...]
    nonce: str

    def __call__(self, found: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return _answers(found, _numbers(Path(self.directory), self.names), self.nonce)


def _answers(found: Iterator[pyarrow.RecordBatch], secret: bytes, nonce: str) -> Iterator[pyarrow.RecordBatch]:
    """Answer once for all numbers of a task, which are consecutive."""
    numbers = [number for batch in found for number in batch.column(0).to_pylist()]
    if numbers:
        first, last = numbers[0], numbers[-1]
        answer = (first, last, os.uname().nodename, proof(secret, nonce, first, last))
        yield batch(ANSWERS, [[value] for value in answer])


def _directories(path: Path) -> tuple[str, ...]:
    """Return the names of some directories in a directory; none if it cannot be read."""
    try:
        with os.scandir(path) as found:
            return tuple(
                sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))[:_MOST_DIRECTORIES]
            )
    except OSError:
        return ()


def _numbers(path: Path, names: tuple[str, ...]) -> bytes:
    """Return the inode numbers of a directory and of some in it; all clients of a shared file system see the same."""
    return ",".join(str(_number(directory)) for directory in (path, *(path / name for name in names))).encode()


def _number(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0
