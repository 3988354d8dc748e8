"""Every error that Bayou raises on purpose.

    BayouError                      one line, a stable code, an exit code, and a hint where a person can act
    ├── UsageError                  the command line or the configuration is wrong (exit 2)
    │   ├── ConfigInvalid           bayou.toml, environment or option: unknown key, wrong type, bad URL
    │   ├── CredentialInConfig      a secret is in a place from which it would be committed
    │   ├── NamespaceInvalid        not a slug, or a payload root's name
    │   ├── NotARepo                no bayou.toml here or above
    │   ├── AlreadyInitialized      there is a bayou.toml already
    │   ├── NameRefused             an item, tag or version cannot have that name
    │   ├── RetentionInvalid        neither a lifetime nor a number to keep
    │   ├── ModelInvalid            a definition, type or name is wrong: unknown key, bad value; names the line
    │   ├── ModelExists             there is a model of that name already
    │   ├── ModelNotFound           no definition and no data of that name or id
    │   ├── ModelAmbiguous          several models have that name
    │   ├── TypeInvalid             a type of models cannot be loaded: its file is broken, or its name is taken
    │   ├── TypeNotFound            that type is not defined, so no method of it can run
    │   ├── MethodNotFound          the type has no such method
    │   ├── ArgumentsInvalid        the arguments do not fit the method; names the argument
    │   ├── ExpressionInvalid       a `${{ … }}` cannot be parsed or evaluated; names file and line
    │   ├── WorkflowInvalid         a workflow is wrong: unknown key, cycle, unknown model; names the line
    │   ├── WorkflowExists          there is a workflow of that name already
    │   ├── WorkflowNotFound        no workflow of that name or id
    │   ├── InputInvalid            the inputs do not fit the workflow
    │   ├── IdAmbiguous             several runs or outputs have an id that begins so
    │   ├── QueryInvalid            not a CEL expression or SQL, or it names an unknown field or table
    │   ├── Offline                 the operation needs the store, and the caller chose to work offline
    │   └── NotConfirmed            a deletion was not confirmed
    ├── ModelHasData                a model that has data is deleted only with an explicit option
    ├── MethodFailed                a method failed; types raise it, and outputs record it
    ├── AssertionFailed             an assertion of a workflow does not hold
    ├── NothingToResume             the run has succeeded, or is still in progress
    ├── RecordError                 an operation on data, outputs, runs or evaluated definitions failed
    │   ├── DataNotFound            no such item, or no such version of it
    │   ├── HistoryCollected        what was deleted is in no commit that can still be read
    │   ├── RecordNotFound          no such output, run or evaluated definition
    │   ├── NameTaken               an item has that name, or had it before a rename
    │   ├── NotStreaming            only streaming data can be appended to
    │   ├── TooManyRenames          a name forwards to a name that forwards, too many times
    │   ├── RecordDamaged           a record file is malformed
    │   └── ContentDamaged          content does not match its metadata
    ├── PathRefused                 a path that is unsafe in a tree (V21)
    ├── TreeError                   a file of the tree cannot be read or written: disk full, read-only, forbidden
    ├── StoreError                  a request to the store failed; `retryable` and `ambiguous` say how
    │   ├── NotFound                really no such key (V4: nothing else means absent)
    │   ├── AlreadyExists           a create-only write found an object
    │   ├── PreconditionFailed      the current version is not the expected one
    │   ├── AccessDenied            403
    │   ├── CredentialsMissing      no source of credentials was found
    │   ├── CredentialsExpired      the credentials are no longer valid
    │   ├── WrongRegion             the bucket is in another region
    │   ├── NoSuchBucket            404 for the bucket itself
    │   ├── CannotConnect           refused, unknown host, TLS
    │   ├── TimedOut                one request took too long
    │   ├── Unavailable             5xx, 429, 409, a reset: a retry may succeed
    │   ├── BadAnswer               truncated, garbage, or not a response to the request
    │   ├── TooLarge                an object has more bytes than its reader accepts (V25)
    │   ├── Rejected                any other 4xx, or a local failure of a file:// store
    │   ├── UploadGone              the store no longer has an unfinished upload, or a part of it
    │   ├── NoConditionalWrites     the store ignores preconditions (probe)
    │   └── DeleteFailed            some keys of a batch could not be deleted
    ├── IndexDamaged                the index is damaged (exit 4)
    │   ├── HeadCorrupt             head.json is not a head
    │   ├── HeadLost                there are objects of commits, but no head (P9)
    │   ├── UnknownFormat           written by a newer Bayou (V10)
    │   ├── NodeMissing             an object of a node does not exist
    │   └── NodeDamaged             a node does not match its parent's reference
    ├── ParserFailed                the process that parses index nodes does not start; no node is damaged
    ├── SyncError                   the tree and the store cannot be reconciled without a decision
    │   ├── StoreSwapped            the head belongs to another store than the one that the base records
    │   ├── StoreEmptied            the base records a store, and the store is empty now
    │   ├── StoreRestored           the store's history is not the one that the base records: a backup was restored
    │   ├── MassDelete              more deletes than Bayou makes without an explicit option
    │   ├── ReplicaRefused          the target is not, or no longer, a copy of this store, and is not overwritten
    │   ├── ConflictRefused         there is a conflict, and the caller chose to fail on conflicts
    │   └── AlreadySyncing          another process syncs this repo
    ├── LeaseError                  a lease could not be taken, renewed or released (V13)
    │   ├── LeaseTimeout            another holder kept the lease until the timeout (exit 75)
    │   ├── LeaseLost               another holder took the lease: stop before the next write
    │   └── LeaseCorrupt            the object is not a lease
    ├── NotPushed                   the work is done and saved here, and the store does not have it yet (exit 5)
    ├── SparkError                  Spark is not available, or a job failed
    │   ├── JavaMissing             there is no Java
    │   ├── JavaTooOld              Spark does not run on this version of Java
    │   ├── SparkUnavailable        the server does not start, or does not answer
    │   ├── SparkLost               the server ended during a job
    │   ├── SparkNotShared          workers on other machines cannot read a directory that the job needs
    │   └── SparkFailed             a job failed; its hint names the log with the cause
    ├── PackageMissing              an optional package is not installed; the hint names Bayou's extra
    ├── TrustNeeded                 a clone requires permission that only this user can give on this machine (V23)
    ├── StateError                  .bayou/state cannot be read or written
    ├── ContentChanged              a file does not (any more) have its recorded hash
    ├── DeadlinePassed              the whole operation took too long (exit 124)
    └── Cancelled                   the user or a signal stopped the operation (exit 130, or 143)

Catch `BayouError` where an error becomes an exit code, `StoreError` where the caller may retry a request, and the
leaves where the difference matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class BayouError(Exception):
    """The base class. `code` is a contract for scripts; `message` is one line; `hint` names the user's next step."""

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


class Offline(UsageError):
    code = "offline"


class NotARepo(UsageError):
    code = "not_a_repo"


class AlreadyInitialized(UsageError):
    code = "already_initialized"


class NameRefused(UsageError):
    code = "name_refused"


class RetentionInvalid(UsageError):
    code = "retention_invalid"


class ModelInvalid(UsageError):
    code = "model_invalid"


class ModelExists(UsageError):
    code = "model_exists"


class ModelNotFound(UsageError):
    code = "model_not_found"


class ModelAmbiguous(UsageError):
    code = "model_ambiguous"


class TypeInvalid(UsageError):
    code = "type_invalid"


class TypeNotFound(UsageError):
    code = "type_not_found"


class MethodNotFound(UsageError):
    code = "method_not_found"


class ArgumentsInvalid(UsageError):
    code = "arguments_invalid"


class ExpressionInvalid(UsageError):
    code = "expression_invalid"


class WorkflowInvalid(UsageError):
    code = "workflow_invalid"


class WorkflowExists(UsageError):
    code = "workflow_exists"


class WorkflowNotFound(UsageError):
    code = "workflow_not_found"


class InputInvalid(UsageError):
    code = "input_invalid"


class IdAmbiguous(UsageError):
    code = "id_ambiguous"


class QueryInvalid(UsageError):
    code = "query_invalid"


class NotConfirmed(UsageError):
    code = "not_confirmed"


class ModelHasData(BayouError):
    code = "model_has_data"


class MethodFailed(BayouError):
    """A method failed. Outputs record `details`, such as a traceback, below the message."""

    code = "method_failed"

    def __init__(self, message: str, *, hint: str | None = None, details: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.details = details


class AssertionFailed(BayouError):
    code = "assertion_failed"


class NothingToResume(BayouError):
    code = "nothing_to_resume"


class RecordError(BayouError):
    """A record could not be found, changed or trusted; catch it where records of one kind may be missing."""

    code = "record_error"


class DataNotFound(RecordError):
    code = "data_not_found"


class HistoryCollected(RecordError):
    code = "history_collected"


class RecordNotFound(RecordError):
    code = "record_not_found"


class NameTaken(RecordError):
    code = "name_taken"


class NotStreaming(RecordError):
    code = "not_streaming"


class TooManyRenames(RecordError):
    code = "too_many_renames"


class RecordDamaged(RecordError):
    code = "record_damaged"


class ContentDamaged(RecordError):
    code = "content_damaged"


class PathRefused(BayouError):
    code = "path_refused"


class TreeError(BayouError):
    code = "tree_error"


class StoreError(BayouError):
    """A request failed.

    `retryable`: the same request may succeed a moment later. `ambiguous`: the request may have taken effect although
    no good response came, so the retry of a conditional write may find the object of its first attempt.
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


class TooLarge(StoreError):
    code = "object_too_large"

    @classmethod
    def of(cls, key: str, size: int, most: int) -> TooLarge:
        """Make the error for an object of `size` bytes whose reader accepts at most `most` (V25)."""
        return cls(
            f"{key} has {size} bytes, and at most {most} are read",
            hint="Bayou writes no such object: bayou datastore verify shows what is damaged",
        )


class Rejected(StoreError):
    code = "store_rejected"


class UploadGone(StoreError):
    """An upload in parts was completed, aborted or expired, or a part is missing: begin it anew."""

    code = "upload_gone"


class NoConditionalWrites(StoreError):
    code = "no_conditional_writes"


class DeleteFailed(StoreError):
    """Some objects of a batch still exist; `failed` maps their keys to the causes. The others are deleted."""

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


class ParserFailed(BayouError):
    code = "parser_failed"


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


class ReplicaRefused(SyncError):
    code = "replica_refused"


class ConflictRefused(SyncError):
    code = "conflict"
    exit_code = 3


class AlreadySyncing(SyncError):
    code = "already_syncing"
    exit_code = 75


class LeaseError(BayouError):
    code = "lease_error"


class LeaseTimeout(LeaseError):
    code = "lease_timeout"
    exit_code = 75


class LeaseLost(LeaseError):
    code = "lease_lost"


class LeaseCorrupt(LeaseError):
    code = "lease_corrupt"


class NotPushed(BayouError):
    """The work or the input of a session is durable on this machine; the next write or sync pushes it (V22).

    `cause` is why the store does not have it. A program that repeats the work does it twice.
    """

    code = "not_pushed"
    exit_code = 5

    def __init__(self, message: str, cause: BayouError, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause

    @staticmethod
    def of(cause: BayouError) -> BayouError:
        """Return the error for work that is done and journaled, and whose push failed for this cause.

        A store that cannot be had now is `NotPushed`; any other cause stays what it is, with a message that says so.
        """
        if isinstance(cause, NotPushed):
            return cause
        message = f"what was written here could not be pushed: {cause.message}"
        if isinstance(cause, OUTAGES):
            return NotPushed(message, cause, hint=keeping(_KEPT, cause))
        cause.message, cause.hint = message, keeping("it is saved here, so do not repeat it", cause)
        return cause


class SparkError(BayouError):
    """A failure of Spark. No work is lost: all jobs on Spark can be repeated."""

    code = "spark_error"


class JavaMissing(SparkError):
    code = "java_missing"


class JavaTooOld(SparkError):
    code = "java_too_old"


class SparkUnavailable(SparkError):
    code = "spark_unavailable"


class SparkLost(SparkError):
    code = "spark_lost"


class SparkNotShared(SparkError):
    code = "spark_not_shared"


class SparkFailed(SparkError):
    code = "spark_failed"


class PackageMissing(BayouError):
    code = "package_missing"


class TrustNeeded(BayouError):
    code = "trust_needed"


class StateError(BayouError):
    code = "state_error"


class StateSetAside(UserWarning):
    """A warning, not an error: Bayou has moved a damaged file of its state away and goes on with a new one."""


class ContentChanged(BayouError):
    code = "content_changed"


class DeadlinePassed(BayouError):
    code = "deadline_passed"
    exit_code = 124


class Cancelled(BayouError):
    code = "cancelled"
    exit_code = 130


OUTAGES = (StoreError, LeaseError, DeadlinePassed, AlreadySyncing)
"""Why a store cannot be had now: unreachable, refusing, busy, or another process has the lease."""

_KEPT = "it is saved here, so do not repeat it: the next write or `bayou datastore sync` pushes it"

_AGAIN = (", and try again", "; try again", "try again in a moment", "try again")


def keeping(kept: str, error: BayouError) -> str:
    """Return the hint of an error whose work is kept: what is kept, and the error's own hint, but for "try again"."""
    own = error.hint or ""
    for again in _AGAIN:
        own = own.removesuffix(again)
    return f"{kept}; {own}" if own else kept


def error_codes(base: type[BayouError]) -> frozenset[str]:
    """Return the codes of a class of errors and of all its subclasses."""
    return frozenset({base.code}.union(*map(error_codes, base.__subclasses__())))
