"""Changing `bayou.toml` without losing a word that a person wrote in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bayou.config.load import parse_config, read_text
from bayou.config.settings import DatastoreConfig, Hydrate, check_place
from bayou.config.trust import allow, datastore_needs
from bayou.core import atomic_file
from bayou.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def write_datastore(
    file: Path,
    *,
    url: str | None = None,
    path: str | None = None,
    namespace: str | None = None,
    options: Mapping[str, str] | None = None,
    hydrate: Hydrate | None = None,
) -> None:
    """Make a file name this datastore and no other, in one step (V19); the rest of it stays, comments too.

    Neither `url` nor `path` means the repo's own tree. A `hydrate` of None keeps what the file says. A file that
    already says so is not written again.
    """
    text = read_text(file)
    before = parse_config(text, str(file))
    wanted = DatastoreConfig(
        url, path, namespace, hydrate or before.datastore.hydrate, before.datastore.exclude, dict(options or {})
    )
    check_place(wanted, str(file))
    # V23: whoever has this written allows it. Before the file names it, so that no crash leaves it unallowed.
    allow(file.parent, datastore_needs(file.parent, wanted, lasting=True))
    if wanted == before.datastore:
        return
    import tomlkit  # noqa: PLC0415  (30 ms: only when the configuration changes)

    document = tomlkit.parse(text)
    _put(document, wanted)
    new = tomlkit.dumps(document)
    # Nothing that tomlkit got wrong reaches the disk: it cannot change every file that TOML allows.
    if parse_config(new, str(file)) != replace(before, datastore=wanted):
        raise ConfigInvalid(f"{file}: cannot change [datastore]", hint="write it as one table, with its options below")
    write_file(file, new)


def write_file(file: Path, text: str, *, create: bool = False) -> None:
    """Write a small file whole or not at all, durably; with `create`, `FileExistsError` if there is one already."""
    target = file if create else file.resolve()  # through a link, so that it stays one
    mode = 0o666 if create else target.stat().st_mode & 0o777
    atomic_file.write_file(target, text.encode(), mode=mode, overwrite=not create)


def _put(document: TOMLDocument, place: DatastoreConfig) -> None:
    """Change the [datastore] tables of a parsed file, value by value, so that what stands beside them stays."""
    import tomlkit  # noqa: PLC0415

    table = document.setdefault("datastore", tomlkit.table())
    for name, value in (("url", place.url), ("path", place.path), ("namespace", place.namespace)):
        if value is None:
            table.pop(name, None)
        elif table.get(name) != value:
            table[name] = value
    if table.get("hydrate", "full") != place.hydrate:
        table["hydrate"] = place.hydrate
    if place.options and "options" not in table:
        table["options"] = tomlkit.table()
    options = table.get("options", {})
    for name in [name for name in options if name not in place.options]:
        del options[name]
    for name, text in place.options.items():
        if options.get(name) != text:
            options[name] = text
    if "options" in table and not options and "#" not in options.as_string():
        del table["options"]
