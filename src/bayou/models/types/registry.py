"""The types of a repo: built in, from `extensions/models/*.py` of the repo, and from entry points of packages.

Extensions and entry points are foreign code: one that cannot be loaded is reported, and hides no other. Extensions are
loaded only once this user has allowed the repo's code (V23).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.config.trust import EXTENSIONS, is_plain_directory
from bayou.core.errors import BayouError, TrustNeeded, TypeInvalid, TypeNotFound
from bayou.core.text import did_you_mean
from bayou.models.types.python import Origin, PlainType, PythonCall, misnamed_type
from bayou.models.types.schema import ModelType
from bayou.models.types.shell import Shell
from bayou.models.types.sql import SparkSql

if TYPE_CHECKING:
    from bayou.repo import Repo

BUILT_IN: Mapping[str, ModelType] = {kind.name: kind for kind in (Shell(), PythonCall(), SparkSql())}
FOLDER = "extensions/models"
ENTRY_POINTS = "bayou.models"

_loaded: dict[tuple[str, int, int], list[TypeSource | TypeInvalid]] = {}
"""The types of files, by path, time and size: a process runs many methods, and loads a file once."""

_loading = threading.Lock()
"""Held while a file is loaded: steps of a workflow load types at the same time, and loading changes `sys.path`."""


class TypeSource(Struct, frozen=True):
    """A type, and the file or entry point that offers it."""

    kind: ModelType
    source: str


class Types(Mapping[str, ModelType]):
    """The types of a repo, by name; `bad` has an error for each file or entry point that could not be loaded."""

    def __init__(self, found: Mapping[str, ModelType], bad: tuple[TypeInvalid, ...]) -> None:
        self._found = found
        self.bad = bad

    def __getitem__(self, name: str) -> ModelType:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def load_types(repo: Repo) -> Types:
    """Return every type, by name. A broken type hides no other."""
    found: dict[str, ModelType] = dict(BUILT_IN)
    bad: list[TypeInvalid] = []
    try:
        repo.require_extensions()
        own = from_extensions(repo.root)
    except TrustNeeded as error:
        own = iter([TypeInvalid(f"types of {EXTENSIONS}/ are not shown: {error.message}", hint=error.hint)])
    for offered in (own, from_entry_points()):
        for offer in offered:
            if isinstance(offer, TypeInvalid):
                bad.append(offer)
            elif offer.kind.name in found:
                problem = f"{offer.source}: there is a type {offer.kind.name} already"
                bad.append(TypeInvalid(problem, hint="rename one"))
            else:
                found[offer.kind.name] = offer.kind
    return Types(dict(sorted(found.items())), tuple(bad))


def find_type(repo: Repo, name: str) -> ModelType:
    """Return a type; `TypeNotFound` if there is none. The search stops at the first file that has it.

    `TrustNeeded` if this would load code that this user has not allowed (V23).
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    repo.require_extensions()
    for offer in from_extensions(repo.root):
        if isinstance(offer, TypeSource) and offer.kind.name == name:
            return offer.kind
    types = load_types(repo)
    if name in types:
        return types[name]
    raise not_found(types, name)


def not_found(types: Types, name: str) -> BayouError:
    """Return the error for a type that was not found; it names the types that could not be loaded."""
    if types.bad:
        broken = "; ".join(error.message for error in types.bad)
        return TypeNotFound(f"there is no type {name}, but some could not be loaded: {broken}", hint=types.bad[0].hint)
    hint = did_you_mean(name, types, "list the types with `bayou model types`")
    return TypeNotFound(f"there is no type {name}, so it has no methods", hint=hint)


def from_extensions(root: Path) -> Iterator[TypeSource | TypeInvalid]:
    """Yield the types of a repo's own files, and an error for each file, or class, that cannot be loaded."""
    folder = root / FOLDER
    for file in sorted(folder.glob("*.py")) if is_plain_directory(root, FOLDER) else ():
        if file.name.startswith(("_", ".")):
            continue
        source = f"{FOLDER}/{file.name}"
        try:
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                # V23: a permission covers the files in extensions/, and not the target of a link.
                yield TypeInvalid(
                    f"{source} is a link, or no file, and is not loaded", hint="put the file itself there"
                )
                continue
        except OSError as error:
            yield TypeInvalid(f"cannot read {source}: {error.strerror}", hint="check its permissions")
            continue
        key = (str(file), status.st_mtime_ns, status.st_size)
        with _loading:
            if key not in _loaded:
                _loaded[key] = list(_from_file(file, source, root))
        yield from _loaded[key]


def from_entry_points() -> Iterator[TypeSource | TypeInvalid]:
    """Yield the types of installed packages: classes like those of extensions, or objects that are a `ModelType`."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        source = f"entry point {point.name} ({point.value})"
        try:
            found = point.load()
            if isinstance(found, type):
                found = PlainType(found, Origin("module", found.__module__, found.__qualname__), source)
        except TypeInvalid as error:
            yield error
        except Exception as error:  # noqa: BLE001  (it is foreign code)
            yield _broken(source, error, None)
        else:
            if isinstance(found, ModelType):
                yield TypeSource(found, source)
            else:
                yield TypeInvalid(f"{source} is no type of models", hint="name a class, or a ModelType")


def _from_file(file: Path, source: str, root: Path) -> Iterator[TypeSource | TypeInvalid]:
    try:
        module = _import(file, root)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (it is foreign code)
        yield _broken(source, error, str(file))
        return
    for member in list(vars(module).values()):
        if not isinstance(member, type) or member.__module__ != module.__name__:
            continue
        if "type" in vars(member):
            try:
                yield TypeSource(PlainType(member, Origin("file", str(file), member.__qualname__), source), source)
            except TypeInvalid as error:
                yield error
        elif (meant := misnamed_type(member)) is not None:
            yield TypeInvalid(
                f"{source}: {member.__name__} has `{meant}`, but no `type`, so it is no type of models",
                hint=f"write `type` in place of `{meant}`; the names of helpers begin with _",
            )


def _import(file: Path, root: Path) -> ModuleType:
    """Import a file as a module; what it prints goes to standard error.

    V23: the user has read and allowed the source. Python would prefer a compiled file in `__pycache__`, which need not
    match the source, so none is read or written here.
    """
    name = f"bayou_extension_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python file: {file}")
    module = importlib.util.module_from_spec(spec)
    before, cache, writes_none = list(sys.path), sys.pycache_prefix, sys.dont_write_bytecode
    sys.path.insert(0, str(root))
    sys.pycache_prefix, sys.dont_write_bytecode = os.path.join(os.devnull, "none"), True
    sys.modules[name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path[:] = before
        sys.pycache_prefix, sys.dont_write_bytecode = cache, writes_none
    return module


def _broken(source: str, error: BaseException, file: str | None) -> TypeInvalid:
    """Return the error for code that could not be loaded, with the line of its file and the reason."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            line = frame.lineno
    where = f"{source}, line {line}" if line is not None else source
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return TypeInvalid(
        f"{where}: {type(error).__name__}: {' '.join(str(what).split())}",
        hint="correct it; other types still work",
    )
