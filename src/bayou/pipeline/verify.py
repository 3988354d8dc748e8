"""Verify on Spark: the entries of an index against the listing of its store, key by key, and their bytes if asked for.

What is found is what `sync.compare` finds in one process. This process sees the nodes' descriptions, counts, the first
names of each kind, and streams what a repair works on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from bayou.deadline import Deadline
from bayou.index.discovery import IN_THE_WAY
from bayou.index.head import Head
from bayou.pipeline.arrow import key_text, rows
from bayou.pipeline.bound import ended_by
from bayou.pipeline.comparing import Steps, objects, of
from bayou.pipeline.kernels import judge
from bayou.pipeline.kernels.compare import FINDINGS, Finding
from bayou.pipeline.shared import require_store
from bayou.pipeline.stream import batches
from bayou.store.recipe import Recipe
from bayou.store.store import Store
from bayou.sync.compare import MOST_NAMED, Compared, windows
from bayou.sync.judge import CHANGED, LEARNED, LEFTOVER, MISSING, READ, TRASH, UNINDEXED, WELL, Rules
from bayou.sync.progress import Progress
from bayou.sync.remains import chain
from bayou.sync.report import Refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


@contextmanager
def compared(
    spark: SparkSession,
    store: Store,
    recipe: Recipe,
    head: Head,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Iterator[Compared]:
    """Compare the index of a head with its store; what can be mended is streamed as long as this is open."""
    with ExitStack() as held, ended_by(spark, deadline):
        require_store(spark, recipe.url)
        job = Steps(spark, store, recipe, held, progress, deadline)
        # The index that is compared is that of a head which was read before the listing begins: what is committed
        # meanwhile has its object before its entry (V11).
        index = job.read_index(head)
        listing, listed = job.list_store()
        cases = index.cases.union(objects(listing))
        found, sums = job.compare(cases, Rules(index.hidden, deep), index.entries, sum(listed.values()))
        read, learned = job.read_back(of(found, READ), *sums[READ])
        strays, crowded, apart = job.strays(of(found, UNINDEXED), cases, sums[UNINDEXED].number)
        totals = {
            MISSING: sums[MISSING].number,
            CHANGED: sums[CHANGED].number + learned[CHANGED].number,
            UNINDEXED: sums[UNINDEXED].number - apart,
            judge.REFUSED: listed.get(judge.REFUSED, 0) + apart,
            "unsafe": index.unsafes,
        }
        told = {
            MISSING: _key(of(found, MISSING)),
            CHANGED: _key(of(found.union(read), CHANGED)),
            UNINDEXED: _key(strays),
            judge.REFUSED: _refusals(listing).union(_key(crowded, IN_THE_WAY)),
        }
        names = _names({what: frame for what, frame in told.items() if totals[what]})
        mendable = of(found, MISSING).union(strays).union(of(read, LEARNED)).orderBy("path")
        yield Compared(
            checked=sum(sums[finding].number for finding in (WELL, MISSING, CHANGED, READ)),
            missing=[path for path, _ in names[MISSING]],
            changed=[path for path, _ in names[CHANGED]],
            unindexed=[path for path, _ in names[UNINDEXED]],
            refused=[Refusal(path, reason) for path, reason in names[judge.REFUSED]],
            unsafe=index.unsafe,
            leftovers=sums[LEFTOVER].number,
            trash=sums[TRASH].number,
            damaged=index.damaged + chain(store, head.older, head.log[0].seq)[1],
            totals=totals,
            mendable=lambda: windows((row.finding, row.entry) for row in _stream(spark, mendable)),
        )


def damage(
    spark: SparkSession,
    store: Store,
    recipe: Recipe,
    head: Head,
    *,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> list[str]:
    """Read every node of the index of a head, and of its trash; say what is wrong with those that cannot be used."""
    with ExitStack() as held, ended_by(spark, deadline):
        require_store(spark, recipe.url)
        return Steps(spark, store, recipe, held, progress).read_index(head).damaged


def _refusals(listing: DataFrame) -> DataFrame:
    return listing.where(f"verdict = '{judge.REFUSED}'").select("key", "reason")


def _key(found: DataFrame, reason: str = "") -> DataFrame:
    """Return the paths of findings as `key`, each with one reason."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return found.select(f.col("path").cast("binary").alias("key"), f.lit(reason).alias("reason"))


def _names(told: Mapping[str, DataFrame]) -> defaultdict[str, list[tuple[str, str]]]:
    """Return the first of what each frame (`key`, `reason`) has, in order."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    names: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    first = [
        frame.orderBy("key", "reason").limit(MOST_NAMED).select(f.lit(what), "key", "reason")
        for what, frame in told.items()
    ]
    for what, key, reason in reduce(lambda one, two: one.union(two), first).collect() if first else ():
        names[what].append((key_text(key), reason))
    for some in names.values():
        some.sort()
    return names


def _stream(spark: SparkSession, found: DataFrame) -> Iterator[Finding]:
    """Yield findings as they come, a few at a time."""
    return (Finding(*row) for one in batches(spark, found) for row in rows(one, FINDINGS.names))  # type: ignore[arg-type]
