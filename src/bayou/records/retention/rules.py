"""What may go: a pure function of rows, a time, and what is known of runs.

A version has the `lifetime` that it was written with, and goes when that is over. Among those that stay, the newest
one's `keep` says how many of an item's versions are kept, or for how long; the newest itself is never surplus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Literal

from msgspec import Struct

from bayou.core.errors import RetentionInvalid
from bayou.records.catalog.rows import VersionRow
from bayou.records.lifetimes import parse_keep, parse_lifetime

Why = Literal["expired", "surplus"]
RunIsGone = Callable[[VersionRow], bool]


class Doomed(Struct, frozen=True):
    """A version that may go, and the reason: its lifetime is over, or there are enough newer ones."""

    row: VersionRow
    why: Why


class Verdict(Struct, frozen=True):
    """What may go, and what cannot be judged and therefore stays (V5)."""

    doomed: tuple[Doomed, ...]
    unclear: tuple[str, ...]


def judge(rows: Iterable[VersionRow], now: datetime, run_is_gone: RunIsGone) -> Verdict:
    """Tell which versions may go. A row whose time, lifetime or keep cannot be read stays, and is named (F121)."""
    doomed: list[Doomed] = []
    unclear: list[str] = []
    live = sorted((row for row in rows if not row.deleted), key=lambda row: (row.item, row.version))
    for _, versions in groupby(live, key=lambda row: row.item):
        doomed += _judge_item(list(versions), now, run_is_gone, unclear)
    return Verdict(tuple(doomed), tuple(unclear))


def _judge_item(
    versions: list[VersionRow], now: datetime, run_is_gone: RunIsGone, unclear: list[str]
) -> Iterator[Doomed]:
    staying = []
    for row in versions:
        try:
            over = _is_over(row, now, run_is_gone)
        except (RetentionInvalid, ValueError):
            unclear.append(f"{row.metadata_path}: its lifetime ({row.lifetime} from {row.created_at}) cannot be read")
            over = False
        if over:
            yield Doomed(row, "expired")
        else:
            staying.append(row)
    if not staying:
        return
    *older, newest = staying
    try:
        surplus = _surplus(older, newest.keep, now)
    except (RetentionInvalid, ValueError):
        unclear.append(f"{newest.metadata_path}: its keep ({newest.keep}) cannot be read")
        return
    yield from (Doomed(row, "surplus") for row in surplus)


def _is_over(row: VersionRow, now: datetime, run_is_gone: RunIsGone) -> bool:
    if row.lifetime is None:
        return False
    lifetime = parse_lifetime(row.lifetime)
    if lifetime == "run":
        return row.run is not None and run_is_gone(row)
    return lifetime != "infinite" and lifetime.after(_created(row)) <= now


def _surplus(older: list[VersionRow], keep: str | None, now: datetime) -> list[VersionRow]:
    if keep is None:
        return []
    kept = parse_keep(keep)
    if kept.count is not None:
        return older[: max(0, len(older) + 1 - kept.count)]
    return [row for row in older if kept.span is not None and kept.span.after(_created(row)) <= now]


def _created(row: VersionRow) -> datetime:
    created = datetime.fromisoformat(row.created_at)
    if created.tzinfo is None:
        raise ValueError(f"{row.created_at} has no zone")
    return created
