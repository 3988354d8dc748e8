"""The class-data archive of Java (CDS), which spares a server most of loading and verifying Spark's classes.

An archive fits one Java and one set of jar files, has about 200 MB, and saves three quarters of a server's start. A
server that was started without an archive dumps one into its own directory when it ends. `publish` then moves a
complete dump to the path that all servers with the same Java and jars read.
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
    """The archive of one Spark and one Java, at its published path; the file need not exist yet."""

    path: Path

    @classmethod
    def of(cls, cache: Path, java: Java, spark: SparkHome) -> Archive:
        # A jar that was installed again has another mtime, and the JVM refuses an archive made from the old jar.
        digest = files_digest([java.binary, java.home / "release", *spark.jars])
        return cls(cache / "classes" / f"{spark.version}-{java.version}-{digest}.jsa")

    @property
    def ready(self) -> bool:
        return self.path.is_file()

    def options(self, files: ServerFiles) -> list[str]:
        """Return the JVM options to use the archive, or to dump one into the server's directory at exit."""
        if self.ready:
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"]
        files.classes.touch()  # this empty file tells `terminate` that the server's exit takes a minute
        return [f"-XX:ArchiveClassesAtExit={files.classes}"]

    def publish(self, files: ServerFiles) -> bool:
        """Publish the dump of a server that has ended; return whether there is an archive now.

        A JVM writes the first bytes of the file last, so this deletes a dump that a killed JVM left incomplete.
        """
        try:
            with files.classes.open("rb") as file:
                complete = any(file.read(_MAGIC_BYTES))
        except FileNotFoundError:
            return self.ready
        if not complete:
            files.classes.unlink(missing_ok=True)
            return self.ready
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.replace(files.classes, self.path)
        except FileNotFoundError:
            pass  # another process has just published it
        self._remove_outdated()
        return self.ready

    def _remove_outdated(self) -> None:
        """Remove the archives of jars that were replaced: those with the same versions and another digest."""
        versions = self.path.name.rpartition("-")[0]
        for other in self.path.parent.glob(f"{versions}-*.jsa"):
            if other != self.path:
                other.unlink(missing_ok=True)
