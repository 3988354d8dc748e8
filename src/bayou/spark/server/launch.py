"""Starting a server: write what it reads, start it detached, wait until it says where it listens."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, SparkUnavailable
from bayou.core.file_lock import FileLock, is_locked
from bayou.spark.java import Java
from bayou.spark.server import options
from bayou.spark.server.class_archive import Archive
from bayou.spark.server.files import ServerFiles, signal_server
from bayou.spark.server.identity import LOCAL_DIRS, Identity, SparkHome, server_environment, start_detached
from bayou.spark.server.record import ServerRecord, write_record

_POLL_S = 0.05
_ADDRESS = re.compile(re.escape(options.LISTENS) + r"\S*?:(\d+)\s")
_CAUSE = re.compile(r"^(?:Exception in thread \S+ |Error: )?(?:[\w.$]+\.\w+(?:Exception|Error): )?(.+)$")
_TELLING = re.compile(r"(?:Exception|Error): ")


def launch(
    place: ServerFiles, identity: Identity, java: Java, spark: SparkHome, archive: Archive, deadline: Deadline
) -> ServerRecord:
    """Start a server in `place`, where none runs, and return once it listens. The caller holds the place's turn."""
    token, name = secrets.token_hex(32), f"{identity.key}:{secrets.token_hex(8)}"
    scratch = place.scratch(identity.inherited.get(LOCAL_DIRS, ""))
    _clear(place, scratch)
    place.identity.write_text(identity.to_json())
    settings = options.write_spark(place, identity.master, token=token, identity=name)
    arguments = options.write_java(place, spark.jars, archive.options(place))
    alive = FileLock(place.alive)
    if not alive.acquire(timeout=deadline.remaining()):
        raise SparkUnavailable(f"{place.alive} is held by somebody else", hint="see `bayou spark status`")
    env = server_environment(
        identity.master,
        identity.inherited,
        java_home=java.home,
        spark_home=spark.root,
        scratch=scratch,
    )
    try:
        pid = start_detached(
            [str(java.binary), f"@{arguments}", *options.main_class(identity.master, settings)],
            cwd=place.work,
            log=place.log,
            env=env,
            inherit=[alive.descriptor],  # from now on the server holds the lock, and only its end lets it go
        )
        os.pwrite(alive.descriptor, f"{pid:<10}\n".encode(), 0)
    finally:
        alive.release()
    try:
        record = ServerRecord(_wait(place, deadline), pid, name, token)
        write_record(place, record)
    except BaseException as error:  # also Ctrl-C: nobody would find this server (V14)
        signal_server(place, signal.SIGKILL)
        if isinstance(error, DeadlinePassed):
            error.add_note(f"Spark was still starting, its log: {place.log}")
        raise
    finally:
        settings.unlink(missing_ok=True)
    return record


def _clear(place: ServerFiles, scratch: Sequence[Path]) -> None:
    """Take away what an earlier server left; its log is kept until the next one."""
    place.record.unlink(missing_ok=True)
    place.classes.unlink(missing_ok=True)
    for folder in {place.work, *scratch}:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            ServerFiles(folder).make()
        except OSError as error:
            raise SparkUnavailable(
                f"cannot make the folder {folder}: {error.strerror or error}", hint=f"check {LOCAL_DIRS}"
            ) from None
    if place.log.exists():
        os.replace(place.log, place.log.with_suffix(".old.log"))


def _wait(place: ServerFiles, deadline: Deadline) -> int:
    """Return the port that the server listens on, as soon as it does."""
    while True:
        dead = not is_locked(place.alive)
        said = place.log.read_text(errors="replace") if place.log.exists() else ""
        if found := _ADDRESS.search(said):
            return int(found[1])
        if dead:
            raise SparkUnavailable(f"Spark did not start: {_cause(said)}", hint=f"its log says more: {place.log}")
        deadline.remaining()
        time.sleep(_POLL_S)


def _cause(log: str) -> str:
    """Return what a log says best of what went wrong: its first exception, without the name, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)] or lines[-1:]
    found = _CAUSE.match(telling[0]) if telling else None
    return found[1] if found else "it ended without a word"
