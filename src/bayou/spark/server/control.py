"""Find, start and stop the server that a configuration asks for (`SparkServer`)."""

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
from bayou.spark.server.files import ServerFiles, ServerRecord, read_record, servers_cache, terminate
from bayou.spark.server.identity import LOCAL_ADDRESS, Identity, SparkHome, find_spark, identify
from bayou.spark.server.launch import launch

LOCAL = "local[*,4]"
"""The default master: all cores of this machine, and four attempts at each task, as on a cluster."""

START_S = 180.0
_SOCKET_S = 0.5


class SparkServer(Struct, frozen=True):
    """The server of one identity: where its files are, and the Java and Spark that would start it."""

    cache: Path
    identity: Identity
    java: Java
    spark: SparkHome

    @classmethod
    def of(cls, config: SparkConfig) -> SparkServer:
        """Return the server that `config` asks for; start nothing."""
        config.require_trust()
        java, spark = find_java(), find_spark()
        return cls(servers_cache(), identify(config.master or LOCAL, java, spark), java, spark)

    @property
    def files(self) -> ServerFiles:
        return ServerFiles(self.cache / self.identity.key)

    @property
    def archive(self) -> Archive:
        return Archive.of(self.cache, self.java, self.spark)

    def running(self) -> ServerRecord | None:
        """Return the record of the server if it lives; open no connection."""
        return read_record(self.files) if is_locked(self.files.server_lock) else None

    def is_listening(self) -> bool:
        """Return whether the server runs and accepts connections."""
        record = self.running()
        return record is not None and accepts_connections(LOCAL_ADDRESS, record.port)

    def find_or_start(self, deadline: Deadline) -> ServerRecord:
        """Return the running server, or start one; concurrent callers get the same. The caller holds the use lock."""
        record = self.running()
        if record is None:
            with self._control(deadline):
                record = self.running()
                if record is None:
                    terminate(self.files)  # a server without a record: the command that started it died too early
                    self._end_outdated()
                    record = launch(self.files, self.identity, self.java, self.spark, self.archive, deadline)
        watch.ensure(self.files, self.archive)
        return record

    def discard(self, record: ServerRecord, deadline: Deadline) -> None:
        """End a server that its record does not describe, unless another command has replaced it meanwhile."""
        with self._control(deadline):
            if read_record(self.files) == record:
                terminate(self.files)

    def stop(self, deadline: Deadline) -> bool:
        """Stop the server within seconds, in use or not; return whether it ran.

        This does not wait for a class archive that the server would dump; only `warm_up` and the watcher do.
        """
        if not self.files.root.is_dir():
            return False
        with self._control(deadline):
            stopped = terminate(self.files)
            self.archive.publish(self.files)
        return stopped

    @contextmanager
    def using(self, deadline: Deadline) -> Iterator[None]:
        """Keep the watcher from ending the server inside the context."""
        lock = self.use(deadline)
        try:
            yield
        finally:
            release(lock)

    def use(self, deadline: Deadline) -> FileLock:
        """Take the use lock, which keeps the watcher from ending the server, until `release` or this process's end."""
        self.files.make()
        lock = FileLock(self.files.use_lock)
        if not lock.acquire(shared=True, timeout=deadline.remaining()):
            raise SparkUnavailable(
                "the Spark server is being stopped, and does not end", hint="stop it with `bayou spark stop`"
            )
        os.utime(lock.path)
        return lock

    @contextmanager
    def _control(self, deadline: Deadline) -> Iterator[None]:
        """Hold the control lock: one process at a time starts or stops the server."""
        lock = FileLock(self.files.control_lock)
        if not lock.acquire(timeout=deadline.remaining()):
            raise SparkUnavailable(
                "another command has been starting or stopping Spark for too long",
                hint=f"its log says more: {self.files.log}",
            )
        try:
            yield
        finally:
            lock.release()

    def _end_outdated(self) -> None:
        """Request the end of unused servers of this environment's other versions: no command will find them again."""
        for file in self.cache.glob("*/identity.json"):
            try:
                other = Identity.from_json(file.read_text())
            except (OSError, ValueError):
                continue
            if self.identity.outdates(other):
                watch.end_if_unused(ServerFiles(file.parent))


def release(lock: FileLock) -> None:
    """Release a use lock, and record the time of this last use."""
    try:
        os.utime(lock.path)
    except FileNotFoundError:
        pass
    lock.release()


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a server accepts TCP connections at an address."""
    try:
        socket.create_connection((host, port), timeout=_SOCKET_S).close()
    except OSError:
        return False
    return True
