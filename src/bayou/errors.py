"""Every error that Bayou raises on purpose.

    BayouError                      one line, a stable code, an exit code, and a hint where a person can act
    ├── UsageError                  what was typed or configured is wrong (exit 2)
    │   ├── ConfigInvalid           bayou.toml, environment or option: unknown key, wrong type, bad URL
    │   ├── CredentialInConfig      a secret stands where it would be committed
    │   ├── NamespaceInvalid        not a slug, or a payload root's name
    │   ├── NotARepo                no bayou.toml here or above
    │   └── AlreadyInitialized      there is one already
    ├── PathRefused                 a name that has no safe place in a tree (V21)
    ├── TreeError                   a file of the tree cannot be read or written: disk full, read-only, forbidden
    ├── StoreError                  a request to the store failed; `retryable` and `ambiguous` say how
    │   ├── NotFound                really no such key (V4: nothing else means absent)
    │   ├── AlreadyExists           create-only met an object
    │   ├── PreconditionFailed      the version that was to be matched is not the current one
    │   ├── AccessDenied            403
    │   ├── CredentialsMissing      nobody offers any
    │   ├── CredentialsExpired      they were good once
    │   ├── WrongRegion             the bucket lives elsewhere
    │   ├── NoSuchBucket            404 for the bucket itself
    │   ├── CannotConnect           refused, unknown host, TLS
    │   ├── TimedOut                one request took too long
    │   ├── Unavailable             5xx, 429, 409, a reset: worth another try
    │   ├── BadAnswer               truncated, garbage, or not what was asked for
    │   ├── Rejected                any other 4xx, or a local failure of a file:// store
    │   ├── NoConditionalWrites     the store ignores preconditions (probe)
    │   └── DeleteFailed            some keys of a batch could not be deleted
    ├── IndexDamaged                what the index says cannot be trusted (exit 4)
    │   ├── HeadCorrupt             head.json is not a head
    │   ├── HeadLost                objects of pushes, and no head
    │   ├── UnknownFormat           written by a newer Bayou (V10)
    │   ├── NodeMissing             a node is not there
    │   └── NodeDamaged             a node is not what its parent says
    ├── SyncError                   what the tree and the store say cannot be reconciled without a decision
    │   ├── StoreSwapped            the head belongs to another store than the one that base knows
    │   ├── StoreEmptied            base knows a store, and there is none any more
    │   ├── StoreRestored           the store's history is not the one that base knows: a backup came back
    │   ├── MassDelete              more deletes than anybody means without saying so
    │   ├── ConflictRefused         a conflict, and the caller asked to fail on one
    │   └── AlreadySyncing          another process syncs this repo
    ├── StateError                  .bayou/state cannot be read or written
    ├── ContentChanged              a file is not (any more) what its hash says
    ├── DeadlinePassed              the whole operation took too long (exit 124)
    └── Cancelled                   somebody asked to stop (exit 130, or 143)

Catch `BayouError` where an error becomes an exit code, `StoreError` where a request may be tried again, and the
leaves where the difference matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class BayouError(Exception):
    """The base. `code` is a contract for scripts; `message` is one line; `hint` names the next thing to type."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(BayouError):
    code = "usage"
    exit_code = 2


class ConfigInvalid(UsageError):
    code = "config_invalid"


class CredentialInConfig(UsageError):
    code = "credential_in_config"


class NamespaceInvalid(UsageError):
    code = "namespace_invalid"


class NotARepo(UsageError):
    code = "not_a_repo"


class AlreadyInitialized(UsageError):
    code = "already_initialized"


class PathRefused(BayouError):
    code = "path_refused"


class TreeError(BayouError):
    code = "tree_error"


class StoreError(BayouError):
    """A request failed.

    `retryable`: the same request may succeed a moment later. `ambiguous`: it may have taken effect although no
    good answer came, so a conditional write that is repeated must expect to meet itself.
    """

    code = "store_error"
    retryable: ClassVar[bool] = False
    ambiguous: ClassVar[bool] = False


class NotFound(StoreError):
    code = "not_found"


class AlreadyExists(StoreError):
    code = "already_exists"


class PreconditionFailed(StoreError):
    code = "precondition_failed"


class AccessDenied(StoreError):
    code = "access_denied"


class CredentialsMissing(StoreError):
    code = "no_credentials"


class CredentialsExpired(StoreError):
    code = "credentials_expired"


class WrongRegion(StoreError):
    code = "wrong_region"


class NoSuchBucket(StoreError):
    code = "no_such_bucket"


class CannotConnect(StoreError):
    code = "cannot_connect"
    retryable = True


class TimedOut(StoreError):
    code = "timed_out"
    retryable = True
    ambiguous = True


class Unavailable(StoreError):
    code = "store_unavailable"
    retryable = True
    ambiguous = True


class BadAnswer(StoreError):
    code = "bad_answer"
    retryable = True
    ambiguous = True


class Rejected(StoreError):
    code = "store_rejected"


class NoConditionalWrites(StoreError):
    code = "no_conditional_writes"


class DeleteFailed(StoreError):
    """Some keys of a batch are still there; `failed` maps each to its cause. The others are gone."""

    code = "delete_failed"

    def __init__(self, failed: Mapping[str, StoreError]) -> None:
        key, cause = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        super().__init__(f"could not delete {key}{more}: {cause.message}", hint=cause.hint)
        self.failed = dict(failed)


class IndexDamaged(BayouError):
    code = "index_damaged"
    exit_code = 4


class HeadCorrupt(IndexDamaged):
    code = "head_corrupt"


class HeadLost(IndexDamaged):
    code = "head_lost"


class UnknownFormat(IndexDamaged):
    code = "unknown_format"
    exit_code = 1


class NodeMissing(IndexDamaged):
    code = "node_missing"


class NodeDamaged(IndexDamaged):
    code = "node_damaged"


class SyncError(BayouError):
    code = "sync_error"


class StoreSwapped(SyncError):
    code = "store_swapped"


class StoreEmptied(SyncError):
    code = "store_emptied"


class StoreRestored(SyncError):
    code = "store_restored"


class MassDelete(SyncError):
    code = "mass_delete"


class ConflictRefused(SyncError):
    code = "conflict"
    exit_code = 3


class AlreadySyncing(SyncError):
    code = "already_syncing"
    exit_code = 75


class StateError(BayouError):
    code = "state_error"


class ContentChanged(BayouError):
    code = "content_changed"


class DeadlinePassed(BayouError):
    code = "deadline_passed"
    exit_code = 124


class Cancelled(BayouError):
    code = "cancelled"
    exit_code = 130
