"""Allowing what a test's own repo asks for, as its user would with `bayou trust allow`."""

from __future__ import annotations

from pathlib import Path

from bayou.config import parse_config
from bayou.config.trust import allow, datastore_needs, extension_needs, link_needs, spark_needs


def trust(root: Path) -> None:
    """Allow everything that the repo at `root` asks for now."""
    file = root / "bayou.toml"
    config = parse_config(file.read_text(), str(file))
    allow(
        root,
        [
            *datastore_needs(root, config.datastore),
            *spark_needs(config.spark),
            *link_needs(root),
            *extension_needs(root),
        ],
    )
