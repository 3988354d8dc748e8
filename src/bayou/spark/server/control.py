"""Finding, starting and stopping the server of an identity."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import SparkUnavailable
from bayou.core.file_lock import FileLock, is_locked
from bayou.spark.java import Java, find_java
from bayou.spark.server import watch
from bayou.spark.server.class_archive import Archive
from bayou.spark.server.files import ServerFiles, cache, terminate
from bayou.spark.server.identity import LOCAL_ADDRESS, Identity, SparkHome, find_spark, identify
from bayou.spark.server.launch import launch
from bayou.spark.server.record import ServerRecord, read_record

LOCAL = "local[*,4]"
"""Every core of this machine, and four attempts at each task, as on a cluster."""

START_S = 180.0
_SOCKET_S = 0.5


class SparkServer(Struct, frozen=True):
    """The server of this user, environment, version and master: how to find it, and what it would be started with."""

    cache: Path
    identity: Identity
    java: Java
    spark: SparkHome

    @classmethod
    def of(cls, config: SparkConfig) -> SparkServer:
        """Return the server that `config` asks for; starts nothing."""
        config.require_trust()
        java, spark = find_java(), find_spark()
        return cls(cache(), identify(config.master or LOCAL, java, spark), java, spark)

    @property
    def place(self) -> ServerFiles:
        return ServerFiles(self.cache / self.identity.key)

    @property
    def archive(self) -> Archive:
        return Archive.of(self.cache, self.java, self.spark)

    def running(self) -> ServerRecord | None:
        """Return the server if it lives and has said where; opens no connection."""
        return read_record(self.place) if is_locked(self.place.alive) else None

    def listens(self) -> bool:
        """Say whether the server answers on its port."""
        found = self.running()
        return found is not None and answers(LOCAL_ADDRESS, found.port)

    def find_or_start(self, deadline: Deadline) -> ServerRecord:
        """Return the running server, or start one; two callers at once get the same. The caller holds its `use`."""
        found = self.running()
        if found is None:
            with self._turn(deadline):
                found = self.running()
                if found is None:
                    terminate(self.place)  # one whose starter died before it could say where it listens
                    self._dismiss_outdated()
                    found = launch(self.place, self.identity, self.java, self.spark, self.archive, deadline)
        watch.ensure(self.place, self.archive)
        return found

    def forget(self, record: ServerRecord, deadline: Deadline) -> None:
        """Give up a server that could not be used as its record says, unless somebody has replaced it by now."""
        with self._turn(deadline):
            if read_record(self.place) == record:
                terminate(self.place)

    def stop(self, deadline: Deadline) -> bool:
        """Stop the server within seconds, in use or not; return whether there was one.

        A class archive that it has not written by then is lost: `warm_up` and the watcher are those who wait for one.
        """
        if not self.place.root.is_dir():
            return False
        with self._turn(deadline):
            stopped = terminate(self.place)
            self.archive.publish(self.place)
        return stopped

    @contextmanager
    def using(self, deadline: Deadline) -> Iterator[None]:
        """Keep the server from being stopped for idleness."""
        use = self.use(deadline)
        try:
            yield
        finally:
            release(use)

    def use(self, deadline: Deadline) -> FileLock:
        """Like `using`, until `release`, or the end of this process."""
        self.place.make()
        use = FileLock(self.place.use)
        if not use.acquire(shared=True, timeout=deadline.remaining()):
            raise SparkUnavailable(
                "the Spark server is being stopped, and does not end", hint="stop it with `bayou spark stop`"
            )
        os.utime(use.path)
        return use

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        turn = FileLock(self.place.turn)
        if not turn.acquire(timeout=deadline.remaining()):
            raise SparkUnavailable(
                "another command has been starting or stopping Spark for too long",
                hint=f"its log says more: {self.place.log}",
            )
        try:
            yield
        finally:
            turn.release()

    def _dismiss_outdated(self) -> None:
        """Dismiss servers of other versions of this environment that nobody uses: nobody will find them again."""
        for file in self.cache.glob("*/identity.json"):
            try:
                other = Identity.from_json(file.read_text())
            except (OSError, ValueError):
                continue
            if self.identity.outdates(other):
                watch.dismiss(ServerFiles(file.parent))


def release(use: FileLock) -> None:
    """Let a server go that was used until now."""
    try:
        os.utime(use.path)
    except FileNotFoundError:
        pass
    use.release()


def answers(host: str, port: int) -> bool:
    """Say whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=_SOCKET_S).close()
    except OSError:
        return False
    return True
