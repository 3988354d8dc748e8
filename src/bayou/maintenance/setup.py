"""`datastore setup`: switch a repo to another datastore, a store or a directory, and copy its data there.

The configuration switches last, and sources are removed after that (V19). A command that fails or is killed before
leaves the repo as it was, and the same command completes it: every copy is whole and durable, and a copy of an earlier
run is recognised by its bytes. Only a deadline that passes while data is transferred still switches: the journal has
the rest, and `datastore sync` continues. A version directory is copied, or kept aside, as a whole.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.config import DatastoreConfig, write_datastore
from bayou.core import kept
from bayou.core.deadline import Deadline
from bayou.core.errors import (
    BadAnswer,
    BayouError,
    DeadlinePassed,
    HeadCorrupt,
    HeadLost,
    NoSuchBucket,
    NotFound,
    PathRefused,
    PreconditionFailed,
    StoreEmptied,
    StoreRestored,
    StoreSwapped,
    SyncError,
    TreeError,
    UsageError,
)
from bayou.core.progress import NoProgress, Progress
from bayou.core.text import count
from bayou.index.node import REPAIR
from bayou.objectstore import keys
from bayou.objectstore.probe import learn_etag_form, probe
from bayou.objectstore.store import Store
from bayou.objectstore.url import parse_url, refuse_broken_url
from bayou.repo import LOCAL, Repo
from bayou.state.connection import Connection
from bayou.state.database import remote_url
from bayou.state.journal import NoJournal
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.context import SyncContext, open_context
from bayou.sync.hydrate import complete, hydrate
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.remote_snapshot import RemoteSnapshot
from bayou.sync.report import Conflict, Refusal, Renumber, SetupReport, SyncOptions, SyncReport, left_alone
from bayou.sync.run import run
from bayou.sync.transfer.executor import BAD_CONTENT
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.durability import translate_oserror
from bayou.worktree.hashing import read_content
from bayou.worktree.scan import ScannedFile, SkippedPath, scan
from bayou.worktree.tree import Worktree

_REBUILD = (
    f"in the clone that has synced last: `{REPAIR}`; "
    "if there is none, name the store in bayou.toml by hand, and run it here"
)
_COPY_THREADS = 8
MOST_NAMED = 20
"""How many missing or damaged files a warning names."""
_CHUNK = 1 << 20

Winner = Literal["source", "target"]


class Migrated(Struct):
    """The copied data: every payload path of the source, the paths that were written, and the conflicts."""

    paths: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


def payload(root: Path) -> list[ScannedFile]:
    """Return every payload file of a tree; `TreeError` if a part is unreadable, because it would be left behind."""
    found: list[ScannedFile] = []
    for item in scan(root):
        if isinstance(item, SkippedPath) and item.kind == "unreadable":
            raise TreeError(
                f"cannot read {item.path}: {item.reason}", hint="give this user access to it; nothing was switched"
            )
        if isinstance(item, ScannedFile):
            found.append(item)
    return found


def copy(
    source: Path, target: Path, folder: Conflicts, winner: Winner, deadline: Deadline, progress: Progress
) -> Migrated:
    """Copy the payload of one directory into another; a path that both have stays as the `winner` has it (F060).

    The other side's file is kept in `folder`, durably, before anything replaces it.
    """
    done = Migrated()
    versions: dict[str, list[ScannedFile]] = defaultdict(list)
    for item in payload(source):
        done.paths.append(item.path)
        versions[version_dir(item.path) or item.path].append(item)
    todo: list[ScannedFile] = []
    tree = Worktree(target, NoJournal())
    for version, members in versions.items():
        deadline.remaining()
        there = {item.path for item in scan(target, version) if isinstance(item, ScannedFile)}
        others = {path for path in there if not _same(source / path, target / path)}
        if others and winner == "target":
            done.conflicts += [_keep(folder, source, item.path, "remote") for item in members]
            continue
        done.conflicts += [_keep(folder, target, path, "local") for path in sorted(others)]
        tree.delete_many(sorted(others - {item.path for item in members}))
        todo += [item for item in members if item.path not in there or item.path in others]
    progress.begin("copying", len(todo), sum(item.stat.size for item in todo))
    old = Worktree(source, NoJournal())
    with ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="bayou-copy") as pool:
        try:
            for item, _ in zip(
                todo, pool.map(lambda item: _copy(old, tree, item, deadline, progress), todo), strict=True
            ):
                done.written.append(item.path)
                progress.advance(files=1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            remove(target, done.written)
            raise
    progress.end()
    return done


def remove(root: Path, paths: Sequence[str]) -> None:
    """Remove copies again, as far as possible."""
    tree = Worktree(root, NoJournal())
    for path in paths:
        with suppress(BayouError):
            tree.delete(path)


def remove_moved(source: Path, target: Path, paths: Iterable[str]) -> None:
    """Remove the source files whose copy has the same bytes, and directories that become empty."""
    remove(source, [path for path in paths if _same(source / path, target / path)])


def _copy(source: Worktree, target: Worktree, item: ScannedFile, deadline: Deadline, progress: Progress) -> None:
    deadline.remaining()
    with source.open(item.path) as file:
        target.write(item.path, _counted(file, deadline, progress))
    os.utime(target.local_path(item.path), ns=(item.stat.mtime_ns, item.stat.mtime_ns))


def _counted(file: BinaryIO, deadline: Deadline, progress: Progress) -> Iterator[bytes]:
    """Yield the content of a file, and count it on its way."""
    while data := file.read(_CHUNK):
        deadline.remaining()  # V12: a large file takes long
        yield data
        progress.advance(bytes=len(data))


def _keep(folder: Conflicts, root: Path, path: str, winner: Literal["remote", "local"]) -> Conflict:
    return Conflict(path, winner, str(folder.keep(root / path, path)))


def _same(first: Path, second: Path) -> bool:
    """Whether both files exist, with equal bytes."""
    try:
        return read_content(first).sha256 == read_content(second).sha256
    except FileNotFoundError:
        return False


class _Request(Struct, frozen=True):
    """The arguments of one setup, and its deadline."""

    repo: Repo
    skip_migration: bool
    deadline: Deadline
    progress: Progress
    renumber: Renumber | None
    engine: Literal["auto", "point", "spark"]

    @property
    def conflicts(self) -> Conflicts:
        return Conflicts(self.repo.conflicts)


def setup(
    repo: Repo,
    target: str,
    *,
    namespace: str | None,
    options: Mapping[str, str],
    lazy: bool,
    skip_migration: bool,
    timeout: float | None,
    progress: Progress | None = None,
    renumber: Renumber | None = None,
    engine: Literal["auto", "point", "spark"] = "auto",
) -> SetupReport:
    """Make a store or a directory the datastore of this repo, and copy the repo's data there.

    Of versions that the store has, too, both are kept by the rule `renumber`, as in every sync.
    """
    if "://" in target:
        repo.require_online("a store is set up by asking it")
    elif repo.config.datastore.url is not None and not skip_migration:
        repo.require_online("what the store holds cannot be brought along; --skip-migration leaves it there")
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    request = _Request(repo, skip_migration, deadline, progress or NoProgress(), renumber, engine)
    if not skip_migration and repo.config.datastore.path is not None and not repo.tree_root.is_dir():
        # Not an empty one: a share that is not mounted would stay behind with all its data.
        raise UsageError(
            f"there is no directory {repo.tree_root}, whose data is to be brought along",
            hint="mount or create it, or leave its data there with --skip-migration",
        )
    if "://" in target:
        datastore = DatastoreConfig(
            target, None, namespace, "lazy" if lazy else "full", repo.config.datastore.exclude, dict(options)
        )
        return _to_store(request, datastore)
    if namespace is not None or options or lazy:
        raise UsageError(
            "a directory has no namespace, options or lazy hydration", hint="leave them out, or name a URL"
        )
    if engine == "spark":
        raise UsageError("files go to a directory without Spark", hint="leave out --engine, or name a URL")
    refuse_broken_url(target)
    return _to_directory(request, Path(os.path.abspath(target)))


def _to_store(request: _Request, datastore: DatastoreConfig) -> SetupReport:
    repo, old = request.repo, request.repo.config.datastore
    _refuse_own_state(repo, datastore)
    store = replace(repo, config=replace(repo.config, datastore=datastore)).store()
    request.progress.begin("asking the store what it can do", None, None)
    datastore = _proved(store.within(request.deadline), datastore)
    renewed = replace(repo, config=replace(repo.config, datastore=datastore))
    assert datastore.url is not None
    moving = old.url is None or remote_url(old.url, old.namespace) != remote_url(datastore.url, datastore.namespace)
    if moving and old.url is not None and not request.skip_migration:
        with Connection(repo) as connection:
            hydrate(connection, None, timeout=request.deadline.remaining())
    unfinished: str | None = None
    moved = Migrated()
    with open_context(
        renewed,
        SyncOptions(mode="pull", engine=request.engine),
        deadline=request.deadline,
        progress=request.progress,
        store=store,
    ) as context:
        try:
            joined, anew = _join(context)
        except (HeadCorrupt, HeadLost) as damage:
            raise type(damage)(damage.message, hint=_REBUILD if moving else damage.hint) from None
        try:
            if (moving or anew) and not request.skip_migration:
                moved = _copy_into(request, context)
                both = SyncOptions(mode="sync", engine=request.engine, renumber=request.renumber)
                context = replace(context, options=both)
            try:
                run(context)
            except DeadlinePassed as passed:
                unfinished = passed.message
            report = context.report
            _raise_failed(report, moved.paths)
        except BaseException:
            # The old directory still has the files; copies left here would survive their deletion there.
            remove(renewed.tree_root, moved.written)
            raise
    write_datastore(
        repo.file,
        url=datastore.url,
        namespace=datastore.namespace,
        options=datastore.options,
        hydrate=datastore.hydrate,
    )
    kept.now("bayou.toml names the new store", go_on="bayou datastore sync")
    if joined is not None and joined.ignored:
        report.warn(left_alone(joined.ignored))
    if report.missing:
        report.warn(
            f"the store has lost the content of {_names(report.missing)}; where a tree has it, "
            "`bayou datastore verify --repair` brings it back"
        )
    if report.failed:
        report.warn(
            f"damaged in the store, and not pulled: {_names([failure.path for failure in report.failed])}; "
            "where a tree has the content, `bayou datastore verify --deep --repair` brings it back"
        )
    if old.path is not None:
        report.warn(f"the old directory {repo.tree_root} was left as it is: others may use it")
    refused = (
        [Refusal(refused_key.key, refused_key.reason) for refused_key in joined.refused] if joined is not None else []
    )
    return SetupReport(
        url=store.url,
        namespace=datastore.namespace,
        pushed=report.pushed.files,
        pulled=report.pulled.files,
        bytes_pushed=report.pushed.bytes,
        bytes_pulled=report.pulled.bytes,
        discovered=joined is not None and joined.discovered,
        migrated=len(moved.paths),
        refused=[*refused, *report.refused],
        conflicts=[*moved.conflicts, *report.conflicts],
        warnings=report.warnings,
        unfinished=unfinished,
        missing=report.missing,
        failed=report.failed,
    )


def _names(paths: Sequence[str]) -> str:
    """Return the first of these paths, and how many more there are, for a warning."""
    first, more = ", ".join(sorted(paths)[:MOST_NAMED]), len(paths) - MOST_NAMED
    return f"{first} and {more} more (`bayou datastore verify` lists them)" if more > 0 else first


def _proved(store: Store, datastore: DatastoreConfig) -> DatastoreConfig:
    """Prove that the store can do what Bayou needs; return its configuration, with what was learned of its server.

    A head is proof enough: the client that made it has probed the store.
    """
    try:
        store.head(keys.HEAD)
    except (NotFound, NoSuchBucket):  # a directory that does not exist yet is created by the probe
        probe(store)
    else:
        learn_etag_form(store)
    if store.unquoted_etags is not True:
        return datastore
    return replace(datastore, options={**datastore.options, "unquoted_etags": "true"})


def _join(context: SyncContext) -> tuple[RemoteSnapshot | None, bool]:
    """Make sure that the store has a head; return the snapshot if it had none, and whether base knew another store.

    Base forgets the other store, so that its entries cause no deletes and no skipped files in this one.
    """
    try:
        config = context.repo.config.datastore
        remote_snapshot.read_snapshot(context.store, context.cache, context.base.remote, config, etag=None)
        return None, False
    except (StoreSwapped, StoreRestored):
        context.base.forget()
        return _join(context)[0], True
    except StoreEmptied:
        created = _create(context)  # before base is forgotten: if the head was lost, base helps to rebuild it
        context.base.forget()
        return created, True
    except NotFound:
        return _create(context), False


def _create(context: SyncContext) -> RemoteSnapshot:
    return remote_snapshot.create_index(context.handle, context.engines, context.cache, context.by, proved=True)


def _copy_into(request: _Request, context: SyncContext) -> Migrated:
    """Copy the old tree's payload into this tree, and journal it, so that this or a later push uploads it."""
    if request.repo.tree_root == context.root:
        moved = Migrated([item.path for item in payload(context.root)])
    else:
        moved = copy(
            request.repo.tree_root, context.root, request.conflicts, "source", request.deadline, request.progress
        )
    context.journal.close(context.journal.open("write", moved.paths))
    return moved


_DAMAGE = frozenset({BAD_CONTENT, BadAnswer.code, PreconditionFailed.code, PathRefused.code})
"""The codes of downloads that fail because an object or an entry of the store is damaged."""


def _raise_failed(report: SyncReport, source: Collection[str]) -> None:
    """Raise if a file could not be transferred: then nothing is switched.

    One that only the store has, damaged, does not keep the others from coming (V25).
    """
    own = frozenset(source)
    failed = [failure for failure in report.failed if failure.path in own or failure.code not in _DAMAGE]
    if failed:
        raise SyncError(
            f"{count(len(failed), 'file')} could not be moved, first {failed[0].path}: {failed[0].message}",
            hint="nothing was switched; remove the cause, and run the same command again",
        )


def _to_directory(request: _Request, target: Path) -> SetupReport:
    repo, old = request.repo, request.repo.config.datastore
    own = repo.root / LOCAL / "tree"
    if old.url is None and target == repo.tree_root:
        if target != own and not request.skip_migration:
            # A run that was killed after the switch has not removed them.
            remove_moved(own, target, [item.path for item in payload(own)])
        return _directory_report(target, Migrated(), [])
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", hint="create it, or mount what belongs there")
    if target != own:
        _check_apart(repo, target)
    _check_writable(target)
    moved = Migrated()
    conflicts: list[Conflict] = []
    if not request.skip_migration:
        if old.url is not None:
            with Connection(repo) as connection:
                conflicts = complete(connection, timeout=request.deadline.remaining()).conflicts
        if target != repo.tree_root:
            moved = copy(repo.tree_root, target, request.conflicts, "target", request.deadline, request.progress)
    write_datastore(repo.file, path=None if target == own else str(target))
    kept.now("bayou.toml names the new directory; files that were copied there may be here, too")
    if old.path is None and target != repo.tree_root:
        remove_moved(repo.tree_root, target, moved.paths)
    return _directory_report(target, moved, conflicts)


def _check_apart(repo: Repo, target: Path) -> None:
    """Raise `UsageError` if a directory lies among the state or the definitions of this repo.

    A directory that contains the repo is allowed: payload roots are not among the names that a repo uses.
    """
    hint = "choose a directory of its own, or the repo's own: .bayou/tree"
    real = Path(os.path.realpath(target))
    for name in (LOCAL, "models", "workflows"):
        if real.is_relative_to(os.path.realpath(repo.root / name)):
            raise UsageError(f"{target} lies in {name}/ of this repo", hint=hint)


def _refuse_own_state(repo: Repo, datastore: DatastoreConfig) -> None:
    """Refuse a `file://` store among this repo's own state: the tree is the cache of a store, and never the store."""
    assert datastore.url is not None
    parsed = parse_url(datastore.url)
    if parsed.scheme != "file":
        return
    local = Path(os.path.realpath(repo.root / LOCAL))
    place = Path(os.path.realpath(os.path.join(parsed.bucket, datastore.namespace or "")))
    if place == local.parent or local in (place, *place.parents):
        raise UsageError(f"{place} holds the local state of this repo", hint="choose a directory of its own")


def _check_writable(target: Path) -> None:
    """Raise unless the directory exists, or can be created, and is writable."""
    with translate_oserror(f"cannot write to {target}"):
        target.mkdir(exist_ok=True)
        file = target / temporary_name()
        file.touch(exist_ok=False)
        file.unlink()


def _directory_report(target: Path, moved: Migrated, conflicts: list[Conflict]) -> SetupReport:
    return SetupReport(str(target), None, 0, 0, 0, 0, False, len(moved.paths), [], [*conflicts, *moved.conflicts], [])
