"""Whose server it is: one that differs in any of this is another server, and is never used by mistake."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from bayou.pipeline.java import Java
from bayou.pipeline.server.environment import SOURCE, inherited
from bayou.pipeline.server.spark_home import SparkHome


class Identity(Struct, frozen=True):
    """The user, the Python environment, the programs and the settings that a server was started with."""

    uid: int
    prefix: str
    python: str
    source: str
    master: str
    inherited: Mapping[str, str]
    java_home: str
    java: str
    spark_home: str
    spark: str
    bayou: str
    code: str

    @property
    def key(self) -> str:
        return _digest(json.dumps(asdict(self), sort_keys=True))

    def outdates(self, other: Identity) -> bool:
        """Say whether `other` is this one with other versions: once nobody uses it, nobody will."""
        return self != other and self._place == other._place

    @property
    def _place(self) -> tuple[object, ...]:
        return (self.uid, self.prefix, self.python, self.source, self.master, dict(self.inherited))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        """Read it back; `ValueError` if it is something else."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None


def identify(master: str, java: Java, spark: SparkHome, environ: Mapping[str, str] | None = None) -> Identity:
    """Return the identity of a server that this process would start for `master`."""
    return Identity(
        uid=os.getuid(),
        prefix=sys.prefix,
        python=sys.executable,
        source=str(SOURCE),
        master=master,
        inherited=inherited(master, os.environ if environ is None else environ),
        java_home=str(java.home),
        java=java.version,
        spark_home=str(spark.root),
        spark=spark.version,
        bayou=_bayou_version(),
        code=files_digest(sorted(Path(__file__).parent.glob("*.py"))),  # kernels may change: their workers are new
    )


def files_digest(files: Iterable[Path]) -> str:
    """Return a digest that changes when one of the files does, by size and time."""
    found = []
    for file in files:
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue  # renamed away a moment ago; what came in its place counts the next time
        found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return _digest(json.dumps(found))


def _bayou_version() -> str:
    try:
        return version("bayou")
    except PackageNotFoundError:
        return ""  # run from its source, which `code` stands for


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
