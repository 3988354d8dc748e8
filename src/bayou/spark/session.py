"""Open and close Spark Connect sessions, translate Spark's errors, and interrupt jobs at a deadline.

A session runs on the configured server (`[spark] remote`), or on a local server that stays between commands
(`spark.server`). The credentials of a command travel inside its kernels (V26). Neither the environment nor the settings
of a server hold any, since the next command may have others.

`spark_errors` turns the errors of Spark and gRPC into `SparkError`s of one line that name the server's log; an error
that a task met in a store is raised as that error. Spark knows no deadlines, so `interrupt_at_deadline` watches the
deadline in a thread and interrupts the session's jobs (V12).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from msgspec import Struct

from bayou.config import SparkConfig
from bayou.core import activity, errors
from bayou.core.deadline import Deadline
from bayou.core.errors import (
    BayouError,
    Cancelled,
    DeadlinePassed,
    DeleteFailed,
    IndexDamaged,
    SparkError,
    SparkFailed,
    SparkLost,
    SparkUnavailable,
    StoreError,
)
from bayou.core.file_lock import FileLock
from bayou.spark.server.control import START_S, SparkServer, release
from bayou.spark.server.files import ServerRecord
from bayou.spark.server.options import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from bayou.objectstore.spec import StoreSpec

if TYPE_CHECKING:
    Session: TypeAlias = SparkSession
    """A session, for modules that must not import pyspark themselves."""

_ATTEMPTS = 2
LOCAL_RETRIES, REMOTE_RETRIES = 3, 8
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_DEADLINE_POLL_S = 0.2
INTERRUPT_S = 10.0
"""How long interrupted jobs may take to end before the client closes the connection."""

_MOST_CHARACTERS = 300

_SERVER_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""The gRPC statuses that a client gets when its server has ended, or when another program listens on the port."""

_RPC_ENDED = re.compile(
    r'<_\w+ of RPC that terminated with:\s+status = StatusCode\.(\w+)\s+details = "(.*?)"$', re.M | re.S
)
"""The text of a gRPC error for a call that Spark itself has not answered."""

_TASK_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)
"""The last line of a worker's traceback that ends with an error of Bayou."""

_import_lock = threading.Lock()
_opened: WeakKeyDictionary[SparkSession, _Opened] = WeakKeyDictionary()


class _Opened(Struct, frozen=True):
    """The resources of an open session: the server's log, and the lock that keeps the server alive."""

    log: Path | None = None
    use: FileLock | None = None


class _WrongServer(SparkUnavailable):
    """The server that answered is not the one that the record describes."""


@contextmanager
def spark_session(config: SparkConfig, *, deadline: Deadline | None = None) -> Iterator[SparkSession]:
    """Open a session, close it at the end, and translate the errors of Spark inside the context (`spark_errors`)."""
    spark = open_session(config, deadline=deadline)
    try:
        with spark_errors(log_of(spark)):
            yield spark
    finally:
        close_session(spark)


def open_session(config: SparkConfig, *, deadline: Deadline | None = None) -> SparkSession:
    """Return a new session, which the caller closes with `close_session`; start the local server if it does not run.

    Raise `JavaMissing` or `JavaTooOld` if no suitable Java is installed, `SparkUnavailable` if the server does not
    start or answer.
    """
    config.require_trust()
    _silence_client()
    if config.remote is not None:
        with activity.waiting("connecting to Spark"):
            return _open_remote(config.remote)
    with activity.waiting("starting Spark"):
        return _open_here(SparkServer.of(config), deadline or Deadline.after(START_S))


def _open_here(server: SparkServer, deadline: Deadline) -> SparkSession:
    # Import pyspark while the server starts: each takes seconds.
    threading.Thread(target=_import_client, name="bayou-import-spark", daemon=True).start()
    use = server.use(deadline)
    try:
        spark = _open_local(server, deadline)
    except BaseException:
        release(use)
        raise
    server.files.record_session()
    _opened[spark] = _Opened(server.files.log, use)
    return spark


def require_private_channel(config: SparkConfig, spec: StoreSpec) -> None:
    """Raise `SparkUnavailable` where credentials would travel to another machine in clear text (V26).

    Credentials travel inside kernels. A channel is private if it does not leave this machine, or if it is encrypted: by
    `use_ssl=true`, or by a token, with which Spark's client always uses TLS. An unencrypted channel to another machine
    is allowed only if the user typed the address (BAYOU_SPARK_REMOTE), allowed it (`bayou trust` calls such an address
    in a `bayou.toml` "unencrypted"), or if the address itself has `use_ssl=false`.
    """
    if config.remote is None or not spec.secret or config.remote == os.environ.get("BAYOU_SPARK_REMOTE"):
        return
    if config.gate is not None:
        config.require_trust()
        return
    _import_client()
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415

    try:
        channel = DefaultChannelBuilder(config.remote)  # pyspark's own parser, as for the connection
    except PySparkException as error:
        raise SparkUnavailable(str(error)) from None
    use_ssl = channel.getDefault(DefaultChannelBuilder.PARAM_USE_SSL, "").lower()
    if not channel.secure and not is_loopback(channel.host) and use_ssl != "false":
        raise SparkUnavailable(
            f"{without_secrets(config.remote)} is another machine, and the channel to it is not encrypted: "
            f"the credentials of {spec.url} would travel in clear text",
            hint="add ;use_ssl=true to the address, as in sc://host:15002/;use_ssl=true "
            "(;use_ssl=false where the network itself is private)",
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: `localhost`, or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def close_session(spark: SparkSession) -> None:
    """Close a session, which ends its jobs. The server keeps running for later sessions."""
    opened = _opened.pop(spark, _Opened())
    try:
        spark.stop()
    finally:
        if opened.use is not None:
            release(opened.use)


def log_of(spark: SparkSession) -> Path | None:
    """Return the log of the session's server; None if Bayou did not start the server."""
    return _opened.get(spark, _Opened()).log


def _open_local(server: SparkServer, deadline: Deadline) -> SparkSession:
    for attempt in range(_ATTEMPTS):
        record = server.find_or_start(deadline)
        try:
            return _connect(f"{record.url}/;token={record.token}", record, server.files.log)
        except (SparkLost, _WrongServer):
            if attempt + 1 == _ATTEMPTS:
                raise
            server.discard(record, deadline)
    raise AssertionError("unreachable")


def _open_remote(url: str) -> SparkSession:
    try:
        spark = _connect(url, None, None)
    except SparkError as error:
        raise SparkUnavailable(
            f"no Spark Connect server answers at {without_secrets(url)}: {error.message}",
            hint="check [spark] remote in bayou.toml, or BAYOU_SPARK_REMOTE",
        ) from error
    _opened[spark] = _Opened()
    return spark


def _connect(url: str, expected: ServerRecord | None, log: Path | None) -> SparkSession:
    """Connect; raise `_WrongServer` if an expected server does not report the identity of its record."""
    _import_client()
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark.sql.functions then make columns for Connect
    try:
        builder = DefaultChannelBuilder(url)
        if is_loopback(builder.host):  # a proxy could not reach this machine's loopback
            builder = DefaultChannelBuilder(url, channelOptions=_NO_PROXY)
    except PySparkException as error:
        raise SparkUnavailable(str(error)) from None
    spark = SparkSession.builder.channelBuilder(builder).create()
    retries = LOCAL_RETRIES if expected else REMOTE_RETRIES
    spark.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=5000)])
    try:
        with spark_errors(log):
            identity = spark.conf.get(IDENTITY, None)
        if expected is not None and identity != expected.identity:
            raise _WrongServer(
                f"{expected.url} is not the Spark server that was started for this", hint="see `bayou spark status`"
            )
    except SparkError:
        spark.client.close()
        raise
    return spark


def without_secrets(url: str) -> str:
    """Return a server's address without its parameters, which may include a token."""
    return url.partition("/;")[0]


def _import_client() -> None:
    """Import Spark's client, in one thread at a time.

    Its modules import each other: two threads at once would each find partially initialised modules.
    """
    with _import_lock:
        import pyspark.sql.connect.session  # noqa: PLC0415
        import pyspark.sql.pandas.functions  # noqa: F401, PLC0415


def _silence_client() -> None:
    """Keep log messages and the progress bar of the client off the terminal; failures reach the caller as errors."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ["SPARK_CONNECT_PROGRESS_BAR_ENABLED"] = "0"  # it writes to stdout, among the results
    logging.getLogger("pyspark").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)


@contextmanager
def spark_errors(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark and of the connection into `SparkError`s that name the log; let other errors through.

    An error that a task met in a store is raised as that error: it is no failure of Spark.
    """
    import grpc  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (grpc.RpcError, PySparkException) as error:
        if _status(error) in _SERVER_GONE:
            raise _server_lost(log) from error
        raise _task_error(error, log) or SparkFailed(
            f"the job failed on Spark: {_one_line(error)}", hint=log_hint(log)
        ) from error


def _server_lost(log: Path | None) -> SparkError:
    hint = "the same command again starts another"
    return SparkLost("the Spark server went away", hint=hint if log is None else f"{hint}; its log: {log}")


def _task_error(error: BaseException, log: Path | None) -> BayouError | None:
    """Return the store error, damaged index or passed deadline that made a task fail; None if it failed otherwise."""
    trace = getattr(error, "getStackTrace", None)
    reported = _TASK_ERROR.findall(f"{error}\n{trace() if trace is not None else ''}")
    if not reported:
        return None
    name, message = reported[-1]  # a traceback prints the cause of an error before the error
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, StoreError | IndexDamaged | DeadlinePassed):
        return None
    if kind is DeleteFailed:
        return _delete_failed(message, log)
    return kind(message, hint=log_hint(log))


def _delete_failed(message: str, log: Path | None) -> DeleteFailed:
    """Return the error of a task that could not delete objects; its message names one of them."""
    key, _, cause = message.removeprefix("could not delete ").partition(": ")
    return DeleteFailed({key: StoreError(cause, hint=log_hint(log))})


def _status(error: BaseException | None) -> str | None:
    """Return the name of the gRPC status with which the server or the connection ended a call.

    This asks an error of Spark itself before its context, which may be an unrelated error that the caller handled.
    """
    import grpc  # noqa: PLC0415
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # noqa: PLC0415

    while error is not None:
        if isinstance(error, grpc.RpcError):
            return str(error.code().name)
        if isinstance(error, SparkConnectGrpcException):
            return str(error.getGrpcStatusCode().name)
        error = error.__cause__ or error.__context__
    return None


def log_hint(log: Path | None) -> str:
    """Return the hint that points to the server's log."""
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"


def _one_line(error: BaseException) -> str:
    text = str(error)
    if ended := _RPC_ENDED.match(text):
        text = ": ".join(ended.groups())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_MOST_CHARACTERS]


@contextmanager
def interrupt_at_deadline(spark: SparkSession, deadline: Deadline | None) -> Iterator[None]:
    """Interrupt the jobs of a session once a deadline passes or is cancelled, and raise that error."""
    if deadline is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch_deadline, args=(spark, deadline, done), name="bayou-spark-deadline", daemon=True
    )
    watcher.start()
    try:
        yield
    except Exception:
        deadline.remaining()
        raise
    finally:
        done.set()


@contextmanager
def interrupt_on_error(spark: SparkSession) -> Iterator[None]:
    """Interrupt the jobs of a session when the caller stops waiting for them: by Ctrl-C or any other exception."""
    try:
        yield
    except BaseException:
        interrupt_all(spark)
        raise


def interrupt_all(spark: SparkSession) -> None:
    """Interrupt all jobs of a session."""
    with suppress(SparkError), spark_errors(None):  # a server that is gone runs no job
        spark.interruptAll()


def seconds_left(deadline: Deadline | None) -> float | None:
    """Return the seconds that are left, as the time limit of a task's store calls."""
    return None if deadline is None else deadline.remaining()


def _watch_deadline(spark: SparkSession, deadline: Deadline, done: threading.Event) -> None:
    """Interrupt the jobs of a session after the deadline, and close its connection if they do not end.

    Spark loses an interrupt that arrives while it starts a query: it notes the query as interrupted, runs or forgets
    it, never answers, and ignores later interrupts. The closed connection ends the caller's wait for the answer (V12).
    Spark discards a query that no client follows after five minutes.
    """
    while not done.wait(_DEADLINE_POLL_S):
        try:
            deadline.remaining()
        except (DeadlinePassed, Cancelled):
            break
    else:
        return
    threading.Thread(
        target=_interrupt_until, args=(spark, done), name="bayou-spark-interrupt", daemon=True
    ).start()  # in a thread of its own: a server that does not answer holds up this request, too
    if not done.wait(INTERRUPT_S):
        spark.client.close()


def _interrupt_until(spark: SparkSession, done: threading.Event) -> None:
    """Interrupt at each poll until the caller is done: a job may end between two polls, and the next one begin."""
    while not done.is_set() and not spark.is_stopped:
        interrupt_all(spark)
        done.wait(_DEADLINE_POLL_S)
