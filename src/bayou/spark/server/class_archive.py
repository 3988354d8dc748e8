"""The class archive: what the JVM has to load and check of Spark's classes, kept ready to be mapped into memory.

It is good for one Java and one set of jar files, takes about 200 MB, and saves three quarters of a server's start. A
server that finds none leaves one when it ends, in its own place; it becomes the archive of all once it is complete.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from bayou.spark.java import Java
from bayou.spark.server.files import ServerFiles
from bayou.spark.server.identity import SparkHome, files_digest

_MAGIC_BYTES = 4


class Archive(Struct, frozen=True):
    """Where the archive of one Spark and one Java is, or will be."""

    path: Path

    @classmethod
    def of(cls, cache: Path, java: Java, spark: SparkHome) -> Archive:
        # A jar that was installed anew has another time, and the JVM refuses an archive made of the old one.
        digest = files_digest([java.binary, java.home / "release", *spark.jars])
        return cls(cache / "classes" / f"{spark.version}-{java.version}-{digest}.jsa")

    @property
    def ready(self) -> bool:
        return self.path.is_file()

    def options(self, place: ServerFiles) -> list[str]:
        """Return the JVM's options: use the archive, or leave one in the server's place at the end."""
        if self.ready:
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"]
        place.classes.touch()  # empty until then: whoever stops the server knows that its end takes a while
        return [f"-XX:ArchiveClassesAtExit={place.classes}"]

    def publish(self, place: ServerFiles) -> bool:
        """Take what a server left that has ended; return whether there is an archive now.

        What a JVM was killed over is thrown away: it writes the beginning of the file last.
        """
        try:
            with place.classes.open("rb") as file:
                complete = any(file.read(_MAGIC_BYTES))
        except FileNotFoundError:
            return self.ready
        if not complete:
            place.classes.unlink(missing_ok=True)
            return self.ready
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.replace(place.classes, self.path)
        except FileNotFoundError:
            pass  # somebody else has taken it, in this moment
        self._drop_older()
        return self.ready

    def _drop_older(self) -> None:
        """Remove archives of jars that were replaced: of the same versions, with another digest."""
        same = self.path.name.rpartition("-")[0]
        for other in self.path.parent.glob(f"{same}-*.jsa"):
            if other != self.path:
                other.unlink(missing_ok=True)
