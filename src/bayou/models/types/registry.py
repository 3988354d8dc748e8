"""Which types there are.

Types that others write: plain classes in `extensions/models/*.py`, and whatever entry points name.
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
from bayou.models.types.python import Origin, PlainType, PythonCall
from bayou.models.types.schema import ModelType
from bayou.models.types.shell import Shell
from bayou.models.types.sql import SparkSql

if TYPE_CHECKING:
    from bayou.repo import Repo

BUILT_IN: Mapping[str, ModelType] = {kind.name: kind for kind in (Shell(), PythonCall(), SparkSql())}


class Types(Mapping[str, ModelType]):
    """The types of a repo, by name; `bad` has an error for each file or entry point that offers none it should."""

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
    """Return every type, by name. One that is broken hides no other."""

    found: dict[str, ModelType] = dict(BUILT_IN)
    bad: list[TypeInvalid] = []
    try:
        repo.require_extensions()
        own = from_extensions(repo.root)
    except TrustNeeded as error:
        own = iter([TypeInvalid(f"types of {EXTENSIONS}/ are not shown: {error.message}", hint=error.hint)])
    for offered in (own, from_entry_points()):
        for one in offered:
            if isinstance(one, TypeInvalid):
                bad.append(one)
            elif one.kind.name in found:
                bad.append(TypeInvalid(f"{one.source}: there is a type {one.kind.name} already", hint="rename one"))
            else:
                found[one.kind.name] = one.kind
    return Types(dict(sorted(found.items())), tuple(bad))


def find_type(repo: Repo, name: str) -> ModelType:
    """Return a type; `TypeNotFound` if there is none. Looks no further than to where it is found.

    `TrustNeeded` where code would be loaded that this user neither asked to run nor allows (V23).
    """

    if name in BUILT_IN:
        return BUILT_IN[name]
    repo.require_extensions()
    for one in from_extensions(repo.root):
        if isinstance(one, Offered) and one.kind.name == name:
            return one.kind
    types = load_types(repo)
    if name in types:
        return types[name]
    raise not_found(types, name)


def not_found(types: Types, name: str) -> BayouError:
    """Return the error for a type that nobody offers; it may be one that could not be loaded."""
    if types.bad:
        broken = "; ".join(error.message for error in types.bad)
        return TypeNotFound(f"there is no type {name}, but some could not be loaded: {broken}", hint=types.bad[0].hint)
    hint = did_you_mean(name, types, "list the types with `bayou model types`")
    return TypeNotFound(f"there is no type {name}, so it has no methods", hint=hint)


FOLDER = "extensions/models"
ENTRY_POINTS = "bayou.models"

_loaded: dict[tuple[str, int, int], list[Offered | TypeInvalid]] = {}
"""What the files offered, by path, time and size: a process runs many methods, and loads a file once."""

_loading = threading.Lock()
"""Held while a file is loaded: steps of a workflow ask at the same time, and loading touches `sys.path`."""


class Offered(Struct, frozen=True):
    """A type, and who offers it."""

    kind: ModelType
    source: str


def from_extensions(root: Path) -> Iterator[Offered | TypeInvalid]:
    """Yield the types of a repo's own files, and an error for each file, or class, that cannot be loaded."""
    folder = root / FOLDER
    for file in sorted(folder.glob("*.py")) if is_plain_directory(root, FOLDER) else ():
        if file.name.startswith(("_", ".")):
            continue
        source = f"{FOLDER}/{file.name}"
        try:
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                # V23: a permission covers what lies in extensions/, and not what a link leads to.
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


def from_entry_points() -> Iterator[Offered | TypeInvalid]:
    """Yield the types that installed packages offer: classes like those of extensions, or whole `ModelType`s."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        source = f"entry point {point.name} ({point.value})"
        try:
            found = point.load()
            if isinstance(found, type):
                found = PlainType(found, Origin("module", found.__module__, found.__qualname__), source)
        except TypeInvalid as error:
            yield error
        except Exception as error:  # noqa: BLE001  (it is somebody else's code)
            yield _broken(source, error, None)
        else:
            if isinstance(found, ModelType):
                yield Offered(found, source)
            else:
                yield TypeInvalid(f"{source} is no type of models", hint="name a class, or a ModelType")


def _from_file(file: Path, source: str, root: Path) -> Iterator[Offered | TypeInvalid]:
    try:
        module = _import(file, root)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (it is somebody else's code)
        yield _broken(source, error, str(file))
        return
    classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    for one in classes:
        if "type" in vars(one):
            try:
                yield Offered(PlainType(one, Origin("file", str(file), one.__qualname__), source), source)
            except TypeInvalid as error:
                yield error


def _import(file: Path, root: Path) -> ModuleType:
    """Run a file as a module; what it prints is no result of ours.

    V23: its source is what a user can look at and allow. Python would run a compiled file of `__pycache__` instead, and
    one that says so needs not even match the source, so none of those is read or written here.
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
    """Name what could not be loaded, the line where that was found, and why."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            line = frame.lineno
    where = f"{source}, line {line}" if line is not None else source
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return TypeInvalid(
        f"{where}: {type(error).__name__}: {' '.join(str(what).split())}", hint="mend it; other types work without it"
    )
