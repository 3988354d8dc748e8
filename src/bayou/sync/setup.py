"""`datastore setup`: from where data lives now to where it shall live.

Configuration switches last, and sources are removed after that (V19): whatever fails or is killed before leaves the
repo as it was, and the same command again completes. Only a deadline that passes while data moves still switches: the
journal knows what is left, and `datastore sync` goes on with it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bayou.config import DatastoreConfig, write_datastore
from bayou.errors import (
    DeadlinePassed,
    NotFound,
    StoreEmptied,
    StoreRestored,
    StoreSwapped,
    SyncError,
    UsageError,
)
from bayou.repo import Repo
from bayou.store.probe import probe
from bayou.sync import view
from bayou.sync.base import place_url
from bayou.sync.conflict import Conflicts
from bayou.sync.context import Context, open_context
from bayou.sync.hydrate import hydrate
from bayou.sync.progress import Progress
from bayou.sync.report import Conflict, Refusal, SetupReport, SyncOptions
from bayou.sync.run import run
from bayou.tree.content import read_content
from bayou.tree.scan import Found, scan


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
) -> SetupReport:
    """Make a store or a directory the datastore of this repo, and take along what it holds."""
    if "://" in target:
        return _to_store(repo, target, namespace, options, lazy, skip_migration, timeout, progress)
    if namespace is not None or options or lazy:
        raise UsageError(
            "a directory has no namespace, options or lazy hydration", hint="leave them out, or name a URL"
        )
    return _to_directory(repo, Path(os.path.abspath(target)), skip_migration, timeout)


def _to_store(
    repo: Repo,
    url: str,
    namespace: str | None,
    options: Mapping[str, str],
    lazy: bool,
    skip_migration: bool,
    timeout: float | None,
    progress: Progress | None,
) -> SetupReport:
    old = repo.config.datastore
    new = DatastoreConfig(url, None, namespace, "lazy" if lazy else "full", old.exclude, dict(options))
    renewed = replace(repo, config=replace(repo.config, datastore=new))
    store = renewed.store()
    moving = old.url is None or place_url(old.url, old.namespace) != place_url(url, namespace)
    probe(store.within_seconds(timeout or repo.config.sync.timeout))
    if moving and old.url is not None and not skip_migration:
        hydrate(repo, None, timeout=timeout)
    copied = _copy(repo.tree_root, renewed.tree_root, repo, []) if old.path is not None and not skip_migration else 0
    migrate = moving and not skip_migration
    sync_options = SyncOptions(mode="sync" if migrate else "pull", adopt=migrate)
    unfinished: str | None = None
    with open_context(renewed, sync_options, timeout=timeout, progress=progress, store=store) as context:
        discovered, refused = _join(context)
        migrated = copied or (_count(renewed.tree_root) if migrate else 0)
        if migrate:
            # Should time run out, the journal knows that everything here is meant to go up.
            context.journal.mark().done()
        try:
            run(context)
        except DeadlinePassed as passed:
            unfinished = passed.message
        report = context.report
    if report.failed or report.missing:
        names = [one.path for one in report.failed] + report.missing
        raise SyncError(
            f"{len(names)} files could not be moved, as {names[0]}: "
            + (report.failed[0].message if report.failed else "its object is missing"),
            hint="nothing was switched; mend the cause, and run the same command again",
        )
    write_datastore(repo.file, url=url, namespace=namespace, options=options, hydrate=new.hydrate)
    warnings = list(report.warnings)
    if old.path is not None:
        warnings.append(f"the old directory {repo.tree_root} was left as it is: others may use it")
    return SetupReport(
        url=store.url,
        namespace=namespace,
        pushed=report.pushed.files,
        pulled=report.pulled.files,
        bytes_pushed=report.pushed.bytes,
        bytes_pulled=report.pulled.bytes,
        discovered=discovered,
        migrated=migrated,
        refused=[*refused, *report.refused],
        conflicts=report.conflicts,
        warnings=warnings,
        unfinished=unfinished,
    )


def _join(context: Context) -> tuple[bool, list[Refusal]]:
    """Make sure that there is a head and that what we know is about it; say whether it was discovered."""
    try:
        view.look(context.store, context.cache, context.base.place, etag=None)
        return False, []
    except (StoreSwapped, StoreEmptied, StoreRestored):
        context.base.forget()
        return _join(context)
    except NotFound:
        made = view.create(context.store, context.cache, context.by)
        return made.discovered, [Refusal(one.key, one.reason) for one in made.refused]


def _to_directory(repo: Repo, target: Path, skip_migration: bool, timeout: float | None) -> SetupReport:
    old_tree = repo.tree_root
    if target == old_tree:
        return _directory_report(target, 0, [])
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", hint="create it, or mount what belongs there")
    conflicts: list[Conflict] = []
    migrated = 0
    if not skip_migration:
        if repo.config.datastore.url is not None:
            hydrate(repo, None, timeout=timeout, pull=True)
        migrated = _copy(old_tree, target, repo, conflicts)
    target.mkdir(exist_ok=True)
    write_datastore(repo.file, path=str(target))
    if not skip_migration and repo.config.datastore.path is None:
        _remove_copies(old_tree, target)
    return _directory_report(target, migrated, conflicts)


def _directory_report(target: Path, migrated: int, conflicts: list[Conflict]) -> SetupReport:
    return SetupReport(str(target), None, 0, 0, 0, 0, False, migrated, [], conflicts, [])


def _copy(source: Path, target: Path, repo: Repo, conflicts: list[Conflict]) -> int:
    """Copy payload, durably and repeatably; what is there with other bytes stays, ours is kept aside (F060)."""
    count = 0
    folder = Conflicts(repo.conflicts)
    for item in scan(source):
        if not isinstance(item, Found):
            continue
        count += 1
        here, there = source / item.path, target / item.path
        if there.exists():
            if read_content(there).sha256 != read_content(here).sha256:
                conflicts.append(Conflict(item.path, "remote", str(folder.keep(here, item.path))))
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        temporary = there.with_name(f".bayou-{item.stat.inode:x}.tmp")
        shutil.copy2(here, temporary, follow_symlinks=False)
        _sync(temporary)
        os.replace(temporary, there)
        _sync(there.parent)
    return count


def _remove_copies(source: Path, target: Path) -> None:
    """Remove files whose bytes are safe at the new place, and the directories that this empties."""
    for item in list(scan(source)):
        if isinstance(item, Found):
            here, there = source / item.path, target / item.path
            if there.exists() and read_content(there).sha256 == read_content(here).sha256:
                here.unlink(missing_ok=True)
    for folder in sorted((path for path in source.rglob("*") if path.is_dir()), reverse=True):
        try:
            folder.rmdir()
        except OSError:
            continue


def _count(root: Path) -> int:
    return sum(isinstance(item, Found) for item in scan(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
