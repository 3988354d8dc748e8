"""Change `bayou.toml`, and keep everything else in it, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bayou.config.load import parse_config, read_text
from bayou.config.settings import DatastoreConfig, Hydrate, check_datastore
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
    """Write this datastore into a file in one step (V19).

    Neither `url` nor `path` means the repo's own tree. A `hydrate` of None keeps the file's value. A file that already
    has this datastore is not written.
    """
    text = read_text(file)
    before = parse_config(text, str(file))
    wanted = DatastoreConfig(
        url, path, namespace, hydrate or before.datastore.hydrate, before.datastore.exclude, dict(options or {})
    )
    check_datastore(wanted, str(file))
    # V23: the user who writes this allows it. Allow it first, so that a crash never leaves it written but not allowed.
    allow(file.parent, datastore_needs(file.parent, wanted, lasting=True))
    if wanted == before.datastore:
        return
    import tomlkit  # noqa: PLC0415  (30 ms: only when the configuration changes)

    document = tomlkit.parse(text)
    _update(document, wanted)
    new = tomlkit.dumps(document)
    # tomlkit cannot change every valid file: check its result before the file is written.
    if parse_config(new, str(file)) != replace(before, datastore=wanted):
        raise ConfigInvalid(f"{file}: cannot change [datastore]", hint="write it as one table, with its options below")
    write_file(file, new)


def write_file(file: Path, text: str, *, create: bool = False) -> None:
    """Write a small file atomically and durably; with `create`, raise `FileExistsError` if it exists."""
    target = file if create else file.resolve()  # write through a link, which stays a link
    mode = 0o666 if create else target.stat().st_mode & 0o777
    atomic_file.write_file(target, text.encode(), mode=mode, overwrite=not create)


def _update(document: TOMLDocument, datastore: DatastoreConfig) -> None:
    """Change the [datastore] tables of a parsed file value by value, so that comments beside them stay."""
    import tomlkit  # noqa: PLC0415

    table = document.setdefault("datastore", tomlkit.table())
    for name, value in (("url", datastore.url), ("path", datastore.path), ("namespace", datastore.namespace)):
        if value is None:
            table.pop(name, None)
        elif table.get(name) != value:
            table[name] = value
    if table.get("hydrate", "full") != datastore.hydrate:
        table["hydrate"] = datastore.hydrate
    if datastore.options and "options" not in table:
        table["options"] = tomlkit.table()
    options = table.get("options", {})
    for name in [name for name in options if name not in datastore.options]:
        del options[name]
    for name, text in datastore.options.items():
        if options.get(name) != text:
            options[name] = text
    if "options" in table and not options and "#" not in options.as_string():
        del table["options"]
