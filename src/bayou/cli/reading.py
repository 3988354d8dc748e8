"""How a command that reads runs: without a lease, and without a request unless content must be fetched (V15)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bayou.cli.common import Common
from bayou.cli.output import Line, note, warn

if TYPE_CHECKING:
    from bayou.records.records import Records


@contextmanager
def reading(common: Common) -> Iterator[tuple[Records, list[Line]]]:
    """Open the records, with a catalog that is up to date; also give what there is to say about that.

    A record that cannot be read is named (F121), and a catalog that had to be mended says so (F115).
    """
    repo = common.open_repo()
    from bayou.records.records import Records  # noqa: PLC0415

    with Records(repo) as records:
        mended = records.catalog.refresh().line
        told = [note(mended)] if mended is not None else []
        yield records, [*told, *(warn(bad.why) for bad in records.catalog.bad())]
