"""A Spark session: on the cluster that is configured, or on a local server that stays warm between commands.

Always Spark Connect. A caller's credentials travel inside its kernels: neither a server's environment nor its settings
ever hold any, since the next caller may have others.

What goes wrong with Spark, said in our words: one line, and where its log is.

Jobs end by a deadline (V12): Spark knows none.
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
from bayou.core import errors
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
from bayou.spark.server.options import IDENTITY
from bayou.spark.server.record import ServerRecord

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from bayou.objectstore.spec import StoreSpec

_LONGEST = 300
_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""What a client is told when its server has ended, or another listens in its place."""

_ENDED = re.compile(
    r'<_\w+ of RPC that terminated with:\s+status = StatusCode\.(\w+)\s+details = "(.*?)"$', re.M | re.S
)
"""What gRPC says of a call that Spark itself has not answered."""

_MET = re.compile(r"^bayou\.errors\.(\w+): (.+)$", re.MULTILINE)
"""The last line of what a worker's Python says of an error of ours."""


@contextmanager
def spark_errors(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark and of the way to it into `SparkError`s that name the log; let all others through.

    What a task met in the store is raised as such: it is no failure of Spark.
    """
    import grpc  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (grpc.RpcError, PySparkException) as error:
        if _status(error) in _GONE:
            raise lost(log) from error
        raise met(error, log) or SparkFailed(f"the job failed on Spark: {_one_line(error)}", hint=_see(log)) from error


def lost(log: Path | None) -> SparkError:
    hint = "the same command again starts another"
    return SparkLost("the Spark server went away", hint=hint if log is None else f"{hint}; its log: {log}")


def met(error: BaseException, log: Path | None) -> BayouError | None:
    """Return what a task met in the store, which this process would have met as well; None if it failed otherwise."""
    trace = getattr(error, "getStackTrace", None)
    said = _MET.findall(f"{error}\n{trace() if trace is not None else ''}")
    if not said:
        return None
    name, message = said[-1]  # causes come before what they led to
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, StoreError | IndexDamaged | DeadlinePassed):
        return None
    if kind is DeleteFailed:
        return _not_deleted(message, log)
    return kind(message, hint=_see(log))


def _not_deleted(message: str, log: Path | None) -> DeleteFailed:
    """Return the error of a task that told how many objects it could not delete, and only one of them."""
    key, _, cause = message.removeprefix("could not delete ").partition(": ")
    return DeleteFailed({key: StoreError(cause, hint=_see(log))})


def _status(error: BaseException | None) -> str | None:
    """Return the name of the status with which the server, or the way to it, ended a call.

    Spark's errors know it. Their context may tell another story: that of what the caller was handling.
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


def _see(log: Path | None) -> str:
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"


def _one_line(error: BaseException) -> str:
    text = str(error)
    if ended := _ENDED.match(text):
        text = ": ".join(ended.groups())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_LONGEST]


if TYPE_CHECKING:
    Session: TypeAlias = SparkSession
    """A session, for those who must not import pyspark themselves."""

_ATTEMPTS = 2
_LOCAL_RETRIES, _REMOTE_RETRIES = 3, 8
_NO_PROXY = [("grpc.enable_http_proxy", 0)]


class _Opened(Struct, frozen=True):
    """What belongs to an open session: the server's log, and the lock that keeps the server alive."""

    log: Path | None = None
    use: FileLock | None = None


class _Foreign(SparkUnavailable):
    """The server that answered is not the one that was looked for."""


_loading = threading.Lock()
_opened: WeakKeyDictionary[SparkSession, _Opened] = WeakKeyDictionary()


@contextmanager
def spark_session(config: SparkConfig, *, deadline: Deadline | None = None) -> Iterator[SparkSession]:
    """Open a session, close it at the end, and turn Spark's errors in between into ours."""
    spark = open_session(config, deadline=deadline)
    try:
        with spark_errors(log_of(spark)):
            yield spark
    finally:
        close_session(spark)


def open_session(config: SparkConfig, *, deadline: Deadline | None = None) -> SparkSession:
    """Return a new session; the warm server is started if it does not run. Close it with `close_session`.

    `JavaMissing` or `JavaTooOld` where Spark cannot run, `SparkUnavailable` where it does not; each says what to do.
    """
    config.require_trust()
    _quieten()
    if config.remote is not None:
        return _open_remote(config.remote)
    warm = SparkServer.of(config)
    deadline = deadline or Deadline.after(START_S)
    # While a server starts, if it must: both take their time.
    threading.Thread(target=_load, name="bayou-load-spark", daemon=True).start()
    use = warm.use(deadline)
    try:
        spark = _open_local(warm, deadline)
    except BaseException:
        release(use)
        raise
    _opened[spark] = _Opened(warm.place.log, use)
    return spark


def require_private_channel(config: SparkConfig, recipe: StoreSpec) -> None:
    """Raise `SparkUnavailable` where credentials would travel to another machine in clear text (V26).

    They travel inside kernels. A channel is private if it does not leave this machine, or is encrypted: by
    `use_ssl=true`, or by a token, with which Spark's client always uses TLS. To another machine in clear text they go
    only if this user has typed the address (BAYOU_SPARK_REMOTE), has allowed it (`bayou trust` says "unencrypted" of
    such an address in a `bayou.toml`), or if the address itself says `use_ssl=false`.
    """
    if config.remote is None or not recipe.secret or config.remote == os.environ.get("BAYOU_SPARK_REMOTE"):
        return
    if config.gate is not None:
        config.require_trust()
        return
    _load()
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415

    try:
        channel = DefaultChannelBuilder(config.remote)  # its own reading of the address is the one that counts
    except PySparkException as error:
        raise SparkUnavailable(str(error)) from None
    told = channel.getDefault(DefaultChannelBuilder.PARAM_USE_SSL, "").lower()
    if not channel.secure and not is_loopback(channel.host) and told != "false":
        raise SparkUnavailable(
            f"{without_secrets(config.remote)} is another machine, and the channel to it is not encrypted: "
            f"the credentials of {recipe.url} would travel in clear text",
            hint="add ;use_ssl=true to the address, as in sc://host:15002/;use_ssl=true "
            "(;use_ssl=false where the network itself is private)",
        )


def is_loopback(host: str) -> bool:
    """Say whether the host of an address is this machine, by its number or as `localhost`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def close_session(spark: SparkSession) -> None:
    """End a session and what runs in it. The server stays, for the next one."""
    found = _opened.pop(spark, _Opened())
    try:
        spark.stop()
    finally:
        if found.use is not None:
            release(found.use)


def log_of(spark: SparkSession) -> Path | None:
    """Return the log of the server that a session runs on; None if the server is somebody else's."""
    return _opened.get(spark, _Opened()).log


def _open_local(warm: SparkServer, deadline: Deadline) -> SparkSession:
    for attempt in range(_ATTEMPTS):
        record = warm.find_or_start(deadline)
        try:
            return _connect(f"{record.url}/;token={record.token}", record, warm.place.log)
        except (SparkLost, _Foreign):
            if attempt + 1 == _ATTEMPTS:
                raise
            warm.forget(record, deadline)
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
    """Connect, and make sure that it is the server that was looked for: another is never used by mistake."""
    _load()
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # by this pyspark's functions know which kind of column to make
    try:
        builder = DefaultChannelBuilder(url)
        if is_loopback(builder.host):  # what stays on this machine goes past no proxy
            builder = DefaultChannelBuilder(url, channelOptions=_NO_PROXY)
    except PySparkException as error:
        raise SparkUnavailable(str(error)) from None
    spark = SparkSession.builder.channelBuilder(builder).create()
    retries = _LOCAL_RETRIES if expected else _REMOTE_RETRIES
    spark.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=5000)])
    try:
        with spark_errors(log):
            found = spark.conf.get(IDENTITY, None)
        if expected is not None and found != expected.identity:
            raise _Foreign(
                f"{expected.url} is not the Spark server that was started for this", hint="see `bayou spark status`"
            )
    except SparkError:
        spark.client.close()
        raise
    return spark


def without_secrets(url: str) -> str:
    """Return a server's address without its parameters, one of which may be a token."""
    return url.partition("/;")[0]


def _load() -> None:
    """Load Spark's client, in one thread at a time.

    Its modules import each other in circles: of two threads that begin at once, each would find half of one.
    """
    with _loading:
        import pyspark.sql.connect.session  # noqa: PLC0415
        import pyspark.sql.pandas.functions  # noqa: F401, PLC0415


def _quieten() -> None:
    """Keep the client's own chatter off the terminal; what it has to say comes as errors."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ["SPARK_CONNECT_PROGRESS_BAR_ENABLED"] = "0"  # it would write among the results on stdout
    logging.getLogger("pyspark").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)


_LOOK_S = 0.2


@contextmanager
def interrupt_at_deadline(spark: SparkSession, deadline: Deadline | None) -> Iterator[None]:
    """Interrupt what runs in a session once a deadline passes or is cancelled, and raise that in place of its error."""
    if deadline is None:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_interrupt, args=(spark, deadline, done), name="bayou-spark-deadline", daemon=True)
    watch.start()
    try:
        yield
    except Exception:
        deadline.remaining()
        raise
    finally:
        done.set()


@contextmanager
def cancelled_with(spark: SparkSession) -> Iterator[None]:
    """Cancel what runs in a session when whoever waits for it gives up: by Ctrl-C, or for whatever reason."""
    try:
        yield
    except BaseException:
        interrupt_all(spark)
        raise


def interrupt_all(spark: SparkSession) -> None:
    """Interrupt what runs in a session."""
    with suppress(SparkError), spark_errors(None):  # a server that is gone runs nothing either
        spark.interruptAll()


def seconds_left(deadline: Deadline | None) -> float | None:
    """Return how long a call of a task may take: as long as one of this process."""
    return None if deadline is None else deadline.remaining()


def _interrupt(spark: SparkSession, deadline: Deadline, done: threading.Event) -> None:
    """Interrupt again and again: one job may end between two looks, and the next begin."""
    while not done.wait(_LOOK_S):
        try:
            deadline.remaining()
        except (DeadlinePassed, Cancelled):
            interrupt_all(spark)
