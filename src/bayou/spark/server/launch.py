"""Start a server: write the files that it reads, start its process, wait until it logs the port it listens on."""

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
from bayou.spark.server.files import ServerFiles, ServerRecord, signal_server, start_detached, write_record
from bayou.spark.server.identity import LOCAL_DIRS, Identity, SparkHome, server_environment

_POLL_S = 0.05
_ADDRESS = re.compile(re.escape(options.LISTENS) + r"\S*?:(\d+)\s")
_CAUSE = re.compile(r"^(?:Exception in thread \S+ |Error: )?(?:[\w.$]+\.\w+(?:Exception|Error): )?(.+)$")
_EXCEPTION = re.compile(r"(?:Exception|Error): ")


def launch(
    files: ServerFiles, identity: Identity, java: Java, spark: SparkHome, archive: Archive, deadline: Deadline
) -> ServerRecord:
    """Start a server and return once it listens. None runs in this directory, and the caller holds its control lock."""
    token, name = secrets.token_hex(32), f"{identity.key}:{secrets.token_hex(8)}"
    scratch = files.scratch(identity.inherited.get(LOCAL_DIRS, ""))
    _clear(files, scratch)
    files.identity.write_text(identity.to_json())
    settings = options.write_spark(files, identity.master, token=token, identity=name)
    arguments = options.write_java(files, spark.jars, archive.options(files))
    lock = FileLock(files.server_lock)
    if not lock.acquire(timeout=deadline.remaining()):
        raise SparkUnavailable(f"{files.server_lock} is held by another process", hint="see `bayou spark status`")
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
            cwd=files.work,
            log=files.log,
            env=env,
            inherit=[lock.descriptor],  # the server holds the lock from now on, and only its end releases it
        )
        os.pwrite(lock.descriptor, f"{pid:<10}\n".encode(), 0)
    finally:
        lock.release()
    try:
        record = ServerRecord(_wait_for_port(files, deadline), pid, name, token)
        write_record(files, record)
    except BaseException as error:  # also Ctrl-C: without a record no command finds this server (V14)
        signal_server(files, signal.SIGKILL)
        if isinstance(error, DeadlinePassed):
            error.add_note(f"Spark was still starting, its log: {files.log}")
        raise
    finally:
        settings.unlink(missing_ok=True)
    return record


def _clear(files: ServerFiles, scratch: Sequence[Path]) -> None:
    """Remove the files of the previous server, but keep its log as `spark.old.log`; make the scratch directories."""
    files.record.unlink(missing_ok=True)
    files.classes.unlink(missing_ok=True)
    files.sessions.unlink(missing_ok=True)
    for folder in {files.work, *scratch}:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            ServerFiles(folder).make()
        except OSError as error:
            raise SparkUnavailable(
                f"cannot make the folder {folder}: {error.strerror or error}", hint=f"check {LOCAL_DIRS}"
            ) from None
    if files.log.exists():
        os.replace(files.log, files.log.with_suffix(".old.log"))


def _wait_for_port(files: ServerFiles, deadline: Deadline) -> int:
    """Return the port that the server listens on, as soon as it does."""
    while True:
        dead = not is_locked(files.server_lock)
        log = files.log.read_text(errors="replace") if files.log.exists() else ""
        if found := _ADDRESS.search(log):
            return int(found[1])
        if dead:
            raise SparkUnavailable(f"Spark did not start: {_cause(log)}", hint=f"its log says more: {files.log}")
        deadline.remaining()
        time.sleep(_POLL_S)


def _cause(log: str) -> str:
    """Return the message of the first exception in a log, or the log's last line if there is none."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    causes = [line for line in lines if _EXCEPTION.search(line)] or lines[-1:]
    found = _CAUSE.match(causes[0]) if causes else None
    return found[1] if found else "it ended without a word"
