"""How a command that reads runs: without a lease, and without a request unless content must be fetched (V15)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bayou.cli.common import Common
from bayou.cli.output import Line, note, warn

if TYPE_CHECKING:
    from bayou.data.engine import CatalogEngine
    from bayou.data.records import Records


@contextmanager
def reading(common: Common, engine: CatalogEngine | None = None) -> Iterator[tuple[Records, list[Line]]]:
    """Open the records, with a catalog that is up to date; also give what there is to say about that.

    A record that cannot be read is named (F121), and a catalog that had to be mended says so (F115). Without an
    `engine`, a bar shows how far a rebuild is, and is gone before anything else is printed.
    """
    repo = common.open_repo()
    from bayou.data.engine import CatalogEngine  # noqa: PLC0415
    from bayou.data.records import Records  # noqa: PLC0415

    with ExitStack() as opened:
        with ExitStack() as waiting:
            chosen = engine or CatalogEngine(progress=waiting.enter_context(common.output.progress()))
            records = opened.enter_context(Records(repo, engine=chosen, connection=common.connect(repo)))
            mended = records.catalog.refresh()
        told = [note(mended.line)] if mended.line is not None else []
        told += map(warn, mended.warnings)
        yield records, [*told, *(warn(bad.why) for bad in records.catalog.bad())]
