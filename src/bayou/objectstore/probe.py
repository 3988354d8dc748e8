"""Probe: real requests that prove that a store can do what Bayou relies on, and leave nothing behind.

A store that ignores preconditions lets two writers win (F064), and missing permissions otherwise show up at the worst
moment (F099). So Bayou probes a store before it creates a head there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    AccessDenied,
    AlreadyExists,
    BadAnswer,
    BayouError,
    DeleteFailed,
    NoConditionalWrites,
    NotFound,
    PreconditionFailed,
    Rejected,
)
from bayou.core.ids import ulid
from bayou.objectstore import keys
from bayou.objectstore.keys import Key
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Condition, Create, Match

RACERS = 8
ROUNDS = 3
_CLEANUP_S = 10.0
"""Seconds for the cleanup after a failure, which may have been the end of the caller's deadline (V14)."""


class Capabilities(Struct, frozen=True):
    """Optional abilities of a store. With `conditional_get`, a no-op sync moves no bytes.

    `unquoted_etags`: the server wants ETags without their quotes in conditions; the store sends them so by now.
    """

    conditional_get: bool
    unquoted_etags: bool = False


def probe(store: Store) -> Capabilities:
    """Check reads, conditional writes (also concurrent ones), listings and deletes; raise if one does not work.

    `NoConditionalWrites` says which precondition is not honoured; `AccessDenied` names the missing permission.
    """
    used: list[Key] = []
    try:
        key = _new_key(used)
        with _permission("write objects"):
            store.put(key, _token(), condition=Create())
        _check_absence(store, _new_key(used))
        _check_create(store, key)
        conditional_get = _check_swap(store, key)
        _check_listing(store, key)
        for _ in store.map(lambda _: _check_races(store, used), range(ROUNDS)):
            pass
    except BaseException:
        _clean_up(store, used)
        raise
    with _permission("delete objects"):
        store.delete(used)
    return Capabilities(conditional_get, unquoted_etags=store.unquoted_etags is True)


def learn_etag_form(store: Store) -> None:
    """Find out whether the server of a store with a head wants ETags without quotes; write nothing if that is known.

    A head proves that its server honours conditions, but neither in which form, nor that the head was made there.
    Credentials that may not write learn nothing, and need not.
    """
    if store.unquoted_etags is False:
        with contextlib.suppress(AccessDenied):
            if not honours_swaps(store):
                raise _broken(store, "it swaps an object although the version that was to be matched is gone, or never")


def honours_swaps(store: Store) -> bool:
    """Return whether this store replaces exactly the version that a condition names, by four small requests."""
    used: list[Key] = []
    key = _new_key(used)
    try:
        first = store.put(key, _token(), condition=Create())
        second = store.put(key, _token(), condition=Match(first.etag, first.version))
        try:
            store.put(key, _token(), condition=Match(first.etag, first.version))
        except PreconditionFailed:
            return second.etag != first.etag
        return False
    except (PreconditionFailed, Rejected):
        return False
    finally:
        _clean_up(store, used)


def _clean_up(store: Store, used: list[Key]) -> None:
    """Delete the keys of a probe, unless the store has never answered: then it would only be waited for again."""
    if store.contacted:
        with contextlib.suppress(BayouError):  # the first failure is the error to report
            store.within(Deadline.after(_CLEANUP_S)).delete(used)


def _check_absence(store: Store, key: Key) -> None:
    with _permission("list objects (without it, a store does not tell a missing key from a forbidden one)"):
        try:
            store.get(key)
        except NotFound:
            return
        raise BadAnswer(f"{store.url} answers for a key that was never written", hint="check the endpoint")


def _check_create(store: Store, key: Key) -> None:
    try:
        store.put(key, _token(), condition=Create())
    except AlreadyExists:
        return
    raise _broken(store, "it creates an object over one that exists")


def _check_swap(store: Store, key: Key) -> bool:
    """Check compare-and-swap, and return whether the store also supports conditional reads."""
    with _permission("read objects"):
        found = store.get(key)
    if found is None:
        raise BadAnswer(f"{store.url} says not modified to an unconditional read", hint="check the endpoint")
    before = Match(found.meta.etag, found.meta.version)
    with _permission("replace objects (GCS wants the permission to delete them for it)"):
        stored = store.put(key, _token(), condition=before)
    try:
        store.put(key, _token(), condition=before)
    except PreconditionFailed:
        return stored.etag is not None and store.get(key, if_none_match=stored.etag) is None
    raise _broken(store, "it swaps an object although the version that was to be matched is gone")


def _check_listing(store: Store, key: Key) -> None:
    with _permission("list objects"):
        seen = {meta.key for page in store.list(keys.PROBES) for meta in page}
    if key not in seen:
        raise BadAnswer(
            f"{store.url} does not list an object that was just written", hint="Bayou needs consistent listings"
        )


def _check_races(store: Store, used: list[Key]) -> None:
    """Let several writers create one key at once, then swap one version at once: each time exactly one may win."""
    key = _new_key(used)
    if _winners(lambda: store.put(key, _token(), condition=Create())) != 1:
        raise _broken(store, "of several that create one object at once, more than one wins, or none")
    found = store.get(key)
    if found is None:
        raise BadAnswer(f"{store.url} says not modified to an unconditional read", hint="check the endpoint")
    before: Condition = Match(found.meta.etag, found.meta.version)
    if _winners(lambda: store.put(key, _token(), condition=before)) != 1:
        raise _broken(store, "of several that swap one version at once, more than one wins, or none")


def _winners(write: Callable[[], object]) -> int:
    start = threading.Event()
    won: list[bool] = []
    failed: list[Exception] = []

    def race() -> None:
        start.wait()
        try:
            write()
            won.append(True)
        except (AlreadyExists, PreconditionFailed):
            pass
        except Exception as error:  # noqa: BLE001  (raised in the thread that waits)
            failed.append(error)

    threads: list[threading.Thread] = []
    try:
        for _ in range(RACERS):
            thread = threading.Thread(target=race, name="bayou-probe")
            thread.start()
            threads.append(thread)
    finally:
        start.set()  # also if a thread could not be started: the others must not wait for ever
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return len(won)


@contextlib.contextmanager
def _permission(what: str) -> Iterator[None]:
    try:
        yield
    except AccessDenied as error:
        raise _denied(what, error) from None
    except DeleteFailed as error:
        denied = next((cause for cause in error.failed.values() if isinstance(cause, AccessDenied)), None)
        if denied is None:
            raise
        raise _denied(what, denied) from None


def _denied(what: str, error: AccessDenied) -> AccessDenied:
    return AccessDenied(f"no permission to {what}: {error.message}", hint=error.hint)


def _new_key(used: list[Key]) -> Key:
    key = keys.probe(ulid())
    used.append(key)
    return key


def _token() -> bytes:
    """Return content that no other write has; see `Store.put`."""
    return f"bayou probe {ulid()}".encode()


def _broken(store: Store, how: str) -> NoConditionalWrites:
    return NoConditionalWrites(
        f"{store.url} does not honour conditional writes: {how}",
        hint="use a store that has them: S3, GCS, Azure, MinIO, R2, Ceph, SeaweedFS, or a directory",
    )
