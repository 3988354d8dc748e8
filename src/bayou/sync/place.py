"""Places: what this machine keeps apart from each other, one for each URL and namespace that a repo has synced with."""

from __future__ import annotations

from typing import cast

from bayou.objectstore.url import parse_url
from bayou.repo import Repo
from bayou.sync.database import Database


def place_of(database: Database, repo: Repo) -> int:
    """Return the place that a repo's configuration names; nothing is opened, so that offline work goes on."""
    config = repo.config.datastore
    assert config.url is not None
    return place_id(database, place_url(config.url, config.namespace), config.namespace or "")


def place_url(url: str, namespace: str | None) -> str:
    """Return what identifies a store's place."""
    return f"{parse_url(url)}/{namespace or ''}".rstrip("/")


def place_id(database: Database, url: str, namespace: str) -> int:
    """Return the number of a place, which gets one when it is first asked for."""
    found = database.rows("SELECT id FROM place WHERE url = ? AND namespace = ?", (url, namespace))
    if not found:
        with database.transaction() as db:
            db.execute("INSERT OR IGNORE INTO place (url, namespace) VALUES (?, ?)", (url, namespace))
        found = database.rows("SELECT id FROM place WHERE url = ? AND namespace = ?", (url, namespace))
    return cast("int", found[0][0])
