"""Every error that Bayou raises on purpose.

    BayouError                      one line, a stable code, an exit code, and a hint where a person can act
    ├── UsageError                  what was typed or configured is wrong (exit 2)
    │   ├── ConfigInvalid           bayou.toml, environment or option: unknown key, wrong type, bad URL
    │   ├── CredentialInConfig      a secret stands where it would be committed
    │   ├── NamespaceInvalid        not a slug, or a payload root's name
    │   ├── NotARepo                no bayou.toml here or above
    │   ├── AlreadyInitialized      there is one already
    │   ├── NameRefused             an item, tag or version that cannot be called so
    │   ├── RetentionInvalid        neither a lifetime nor a number to keep
    │   ├── ModelInvalid            a definition, type or name that cannot be: unknown key, bad value; names the line
    │   ├── ModelExists             there is a model of that type and name already
    │   ├── ModelNotFound           no definition and no data of that name or id
    │   ├── ModelAmbiguous          several models have that name
    │   ├── TypeInvalid             a type of models that cannot be loaded: its file is broken, or its name is taken
    │   ├── TypeNotFound            nobody has defined that type, so nothing of it can run
    │   ├── MethodNotFound          the type has no such method
    │   ├── ArgumentsInvalid        what a method gets is not what it takes; names the place
    │   ├── ExpressionInvalid       a `${{ … }}` that cannot be read, or comes to nothing; names the place
    │   ├── WorkflowInvalid         a workflow that cannot be: unknown key, cycle, unknown model; names the line
    │   ├── WorkflowExists          there is a workflow of that name already
    │   ├── WorkflowNotFound        no workflow of that name or id
    │   ├── InputInvalid            what a workflow is given is not what it takes
    │   ├── QueryInvalid            not a CEL expression or SQL, or one that asks for what there is not
    │   ├── Offline                 what was asked for needs the store, and the caller said to leave it alone
    │   └── NotConfirmed            something would be deleted, and nobody said yes
    ├── ModelHasData                a model is not deleted while it has data, unless somebody says so
    ├── MethodFailed                a method did not do what it is for; what a type raises, and an output records
    ├── AssertionFailed             what a workflow asserts is not so
    ├── NothingToResume             a run that has succeeded, or that goes on as it is
    ├── RecordError                 what was asked of data, outputs, runs or evaluated definitions cannot be done
    │   ├── DataNotFound            no such item, or no such version of it
    │   ├── RecordNotFound          no such output, run or evaluated definition
    │   ├── NameTaken               an item has that name, or had it
    │   ├── NotStreaming            only streaming data is appended to
    │   ├── TooManyRenames          a name forwards to a name that forwards, more often than anybody means
    │   ├── RecordDamaged           a record file does not say what it should
    │   └── ContentDamaged          content is not what its metadata says
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
    │   ├── TooLarge                an object has more bytes than its reader takes (V25)
    │   ├── Rejected                any other 4xx, or a local failure of a file:// store
    │   ├── NoConditionalWrites     the store ignores preconditions (probe)
    │   └── DeleteFailed            some keys of a batch could not be deleted
    ├── IndexDamaged                what the index says cannot be trusted (exit 4)
    │   ├── HeadCorrupt             head.json is not a head
    │   ├── HeadLost                objects of pushes, and no head
    │   ├── UnknownFormat           written by a newer Bayou (V10)
    │   ├── NodeMissing             a node is not there
    │   └── NodeDamaged             a node is not what its parent says
    ├── ParserFailed                the process that reads index nodes does not start; no node is to blame
    ├── SyncError                   what the tree and the store say cannot be reconciled without a decision
    │   ├── StoreSwapped            the head belongs to another store than the one that base knows
    │   ├── StoreEmptied            base knows a store, and there is none any more
    │   ├── StoreRestored           the store's history is not the one that base knows: a backup came back
    │   ├── MassDelete              more deletes than anybody means without saying so
    │   ├── ReplicaRefused          a store that is no copy of this one, or not any more: it is not written over
    │   ├── ConflictRefused         a conflict, and the caller asked to fail on one
    │   └── AlreadySyncing          another process syncs this repo
    ├── LeaseError                  who may write now could not be settled (V13)
    │   ├── LeaseTimeout            somebody else kept it for as long as we were to wait (exit 75)
    │   ├── LeaseLost               it was ours, and is no longer: stop before the next write
    │   └── LeaseCorrupt            what lies there is no lease
    ├── SparkError                  Spark cannot be had, or did not do what it was asked to
    │   ├── JavaMissing             there is no Java
    │   ├── JavaTooOld              there is one that Spark does not run on
    │   ├── SparkUnavailable        the server does not start, or is not where it should be
    │   ├── SparkLost               the server went away in the middle
    │   ├── SparkNotShared          workers elsewhere do not see a directory that the job needs
    │   └── SparkFailed             a job failed; the log that its hint names says why
    ├── TrustNeeded                 a clone asks for what only this user can allow on this machine (V23)
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


class QueryInvalid(UsageError):
    code = "query_invalid"


class NotConfirmed(UsageError):
    code = "not_confirmed"


class ModelHasData(BayouError):
    code = "model_has_data"


class MethodFailed(BayouError):
    """A method failed. `details`, a traceback perhaps, is recorded below the message."""

    code = "method_failed"

    def __init__(self, message: str, *, hint: str | None = None, details: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.details = details


class AssertionFailed(BayouError):
    code = "assertion_failed"


class NothingToResume(BayouError):
    code = "nothing_to_resume"


class RecordError(BayouError):
    """A record could not be found, changed or believed; catch it where records of one kind may be missing."""

    code = "record_error"


class DataNotFound(RecordError):
    code = "data_not_found"


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


class TooLarge(StoreError):
    code = "object_too_large"

    @classmethod
    def of(cls, key: str, size: int, most: int) -> TooLarge:
        """Name an object of `size` bytes, of which a reader takes `most` at the most (V25)."""
        return cls(
            f"{key} has {size} bytes, and at most {most} are read",
            hint="Bayou writes no such object: bayou datastore verify shows what is damaged",
        )


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


class SparkError(BayouError):
    """No work was lost: whatever runs on Spark can be run again."""

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
