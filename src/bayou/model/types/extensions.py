"""Types that others write: plain classes in `extensions/models/*.py`, and whatever entry points name."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from bayou.config.trust import is_plain_directory
from bayou.core.errors import TypeInvalid
from bayou.model.types.plain import Origin, PlainType
from bayou.model.types.spec import ModelType

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
