"""The division of transfers among tasks, balanced by what each file costs in bytes and requests.

A task packs files or uploads single objects, not both: so each task that packs has enough small files for a full pack,
also where large files lie between them. A pack is downloaded by one task. Neighbours stay together: the files of one
directory mostly belong to one task, which has them in the order of their paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.spark.kernels.transfer import QueuedUpload

PACKED = 1 << 12
"""The cost of a file in a pack, in bytes besides its own: it is opened, hashed and reported, without a request."""

LEAST = 512 * REQUEST
"""The least cost of a task: scheduling a smaller task takes longer than its work."""


def divide_uploads(window: Sequence[QueuedUpload], most: int, pack_size: int) -> list[int]:
    """Return the task of each upload; a task that packs has files for a full pack, if there are so many.

    There are at most `most` tasks for packs, and as many for single objects.
    """
    loose = [item.upload.size + REQUEST for item in window if not item.packed]
    packed = [item.upload.size + PACKED for item in window if item.packed]
    full_packs = (sum(packed) - PACKED * len(packed)) // pack_size
    packs, objects = iter(_parts(packed, min(most, full_packs))), iter(_parts(loose, most))
    parts = [(item.packed, next(packs if item.packed else objects)) for item in window]
    return _costliest_first(parts, [item.upload.size + (PACKED if item.packed else REQUEST) for item in window])


def divide_downloads(entries: Sequence[Entry], most: int) -> list[int]:
    """Return the task of each entry, of at most `most` tasks; one task has all these entries of a pack."""
    costs: Counter[str] = Counter()  # of objects, in the order of their first paths
    for entry in entries:
        if entry.pack is None:
            costs[entry.path] = entry.size + REQUEST
        else:
            costs[entry.pack] += (entry.stored or 0) + PACKED + (0 if entry.pack in costs else REQUEST)
    task_of = dict(zip(costs, divide(list(costs.values()), most), strict=True))
    return [task_of[entry.pack or entry.path] for entry in entries]


def divide(costs: Sequence[int], most: int) -> list[int]:
    """Return the task of each file or pack; a huge one is alone in a task, and the costliest tasks come first.

    There are at most `most` tasks, and fewer if that would make them too small.
    """
    return _costliest_first(_parts(costs, most), costs)


def _parts(costs: Sequence[int], most: int) -> list[int]:
    """Return the part of each item; the numbers of the parts mean nothing."""
    total = sum(costs)
    tasks = max(1, min(most, len(costs), total // LEAST))
    huge = {at for at, cost in enumerate(costs) if cost * tasks >= total}
    rest, parts = total - sum(costs[at] for at in huge), tasks - len(huge)
    part_of: list[int] = []
    before = 0
    for at, cost in enumerate(costs):
        if at in huge:
            part_of.append(-1 - at)
        else:
            part_of.append((2 * before + cost) * parts // (2 * rest))
            before += cost
    return part_of


def _costliest_first(part_of: Sequence[Hashable], costs: Sequence[int]) -> list[int]:
    """Number the parts by their costs, since Spark starts the tasks with the lowest numbers first."""
    load: Counter[Hashable] = Counter()
    for part, cost in zip(part_of, costs, strict=True):
        load[part] += cost
    number = {part: at for at, (part, _) in enumerate(load.most_common())}
    return [number[part] for part in part_of]
