"""Tables and plots from results: pure functions, without a file or a clock."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise

import _cost
import _svg
from _results import Machine, Result, Row
from _svg import Bars, Line

TOOLS = ("bayou", "rclone", "s5cmd")
COLD = ("cold push", "cold pull")
COST_FILES, COST_SIZE = 1_000_000, 5_000
COST_PULLS = (1, 10, 100, 1000)

Plots = dict[str, str]
"""SVG by the name of its file."""


def machine_sentence(machine: Machine) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    own = f"{machine.cores} cores, {machine.memory_gb} GB of memory, {machine.kernel}, Python {machine.python}"
    return f"{own}, {versions}" if versions else own


def origin(result: Result, command: str) -> str:
    """Say where numbers come from: the command, the day, the commit, the files."""
    files = f"{result.content} content" + (f", {result.size:,} bytes a file" if result.size else "")
    rounds = "one round" if result.rounds == 1 else f"medians of {result.rounds} rounds"
    return f"`{command}`, {result.date}, commit {result.commit}, {files}, {rounds}."


# ---- against the peers ----


def peers_table(rows: Sequence[Row]) -> list[str]:
    """Return ratios first, then what each tool took: seconds, CPU seconds, requests."""
    lines = [
        "| job | files | added to each request | ratio | limit | Bayou | rclone | s5cmd |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for of in by_job(rows):
        ours = of["bayou"]
        engine = " (Spark)" if ours.engine == "spark" else ""
        cells = [
            f"{ours.name}{engine}",
            f"{ours.n:,}",
            f"{ours.delay_ms:g} ms" if ours.delay_ms else "–",
            ratio_cell(ours),
            f"{ours.limit:g}" if ours.limit is not None else "–",
            *(measured_cell(of.get(tool)) for tool in TOOLS),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_job(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Return the rows of all tools that belong together: those jobs that the peers did too."""
    jobs: dict[tuple[str, int, float], dict[str, Row]] = {}
    for row in rows:
        jobs.setdefault((row.name, row.n, row.delay_ms), {})[row.tool] = row
    return [of for of in jobs.values() if "bayou" in of and len(of) > 1]


def ratio_cell(row: Row) -> str:
    if row.ratio is None:
        return "–"
    return f"**{row.ratio:.2f}**" + (" (above)" if row.within is False else "")


def measured_cell(row: Row | None) -> str:
    """Return seconds, CPU seconds and requests; a dash for what was not measured."""
    if row is None:
        return "–"
    cpu = f"{row.cpu_time:.2f}" if row.cpu_time is not None else "–"
    count = f"{row.request_count:,}" if row.request_count is not None else "–"
    return f"{row.time:.2f} / {cpu} / {count}"


def ratios_plot(title: str, rows: Sequence[Row]) -> str:
    """Draw each job's ratio at the largest size that it has, near and with a delay beside each other."""
    delays = sorted({row.delay_ms for row in rows})
    jobs: dict[tuple[str, int], dict[float, Row]] = {}
    for of in by_job(rows):
        jobs.setdefault((of["bayou"].name, of["bayou"].n), {})[of["bayou"].delay_ms] = of["bayou"]
    groups = []
    largest = {name: max(n for other, n in jobs if other == name) for name, _ in jobs}
    for (name, n), found in jobs.items():
        if n != largest[name]:
            continue
        values = [found[delay].ratio if delay in found else None for delay in delays]
        limits = [found[delay].limit if delay in found else None for delay in delays]
        groups.append(Bars(f"{name}\n{n:,} files", values, limits))
    series = [f"{delay:g} ms added" if delay else "on loopback" for delay in delays]
    return _svg.bars(
        title, "time, ratio to the better of rclone and s5cmd", series, groups, told=lambda one: f"{one:.2f}"
    )


def size_plots(rows: Sequence[Row]) -> Plots:
    """Draw seconds and requests of cold pushes and pulls over the number of files, for each tool."""
    plots: Plots = {}
    for name in COLD:
        verb = name.split()[1]
        of = [row for row in rows if row.name == name and row.tool in TOOLS]
        times, counts = [], []
        for tool in TOOLS:
            colour = TOOLS.index(tool)
            for delay in sorted({row.delay_ms for row in of}):
                points = {row.n: row.time for row in of if row.tool == tool and row.delay_ms == delay}
                told = f"{tool}, {delay:g} ms" if delay else tool
                times.append(Line(told, points, dashed=bool(delay), colour=colour))
            requests = {row.n: row.request_count for row in of if row.tool == tool and not row.delay_ms}
            counts.append(Line(tool, {n: count for n, count in requests.items() if count}, colour=colour))
        times, counts = [one for one in times if one.points], [one for one in counts if one.points]
        if times:
            plots[f"{verb}-seconds.svg"] = _svg.lines(f"Cold {verb}: time", "files", "seconds", times)
        if counts:
            plots[f"{verb}-requests.svg"] = _svg.lines(f"Cold {verb}: requests", "files", "requests", counts)
    return plots


# ---- Bayou alone ----


def growth_table(rows: Sequence[Row]) -> list[str]:
    """Return time, time per file and its growth, memory and requests of a push at each size."""
    lines = [
        "| files | seconds | µs per file | growth of that | peak memory of the command | CPU seconds | requests |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    ordered = sorted(rows, key=lambda row: row.n)
    per_file = [row.time / row.n for row in ordered]
    grown = ["–", *(f"{large / small:.2f}" for small, large in pairwise(per_file))]
    for row, each, growth in zip(ordered, per_file, grown, strict=True):
        memory = f"{row.memory_mb:,.0f} MB" if row.memory_mb is not None else "–"
        cpu = f"{row.cpu_time:,.1f}" if row.cpu_time is not None else "–"
        count = f"{row.request_count:,}" if row.request_count is not None else "–"
        lines.append(f"| {row.n:,} | {row.time:,.1f} | {each * 1e6:,.0f} | {growth} | {memory} | {cpu} | {count} |")
    return lines


def growth_plot(title: str, rows: Sequence[Row]) -> str:
    points = {row.n: row.time for row in rows}
    return _svg.lines(title, "files", "seconds (dotted: linear)", [Line("bayou", points, linear=True)])


def jobs_table(rows: Sequence[Row], *, tool: str, compared: str) -> list[str]:
    """Return one line for each row; `tool` heads the column that tells rows of one name apart."""
    lines = [
        f"| job | {tool} | files | added to each request | {compared} | limit | seconds / CPU / requests |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row.name,
            row.tool,
            f"{row.n:,}",
            f"{row.delay_ms:g} ms" if row.delay_ms else "–",
            ratio_cell(row),
            f"{row.limit:g}" if row.limit is not None else "–",
            measured_cell(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def jobs_plot(title: str, rows: Sequence[Row]) -> str:
    """Draw seconds and requests of each row beside each other, on one logarithmic axis."""
    groups = []
    for row in rows:
        delay = f", {row.delay_ms:g} ms" if row.delay_ms else ""
        label = f"{row.name}{delay}" + (f", {row.tool}" if row.tool != "bayou" else "")
        room = 72 // len(rows)  # characters below each bar
        groups.append(Bars("\n".join(textwrap.wrap(label, room)), [row.time, row.request_count or None]))
    return _svg.bars(title, "seconds, requests", ["seconds", "requests"], groups, logarithmic=True)


# ---- computed ----


def cost_plot() -> str:
    groups = [
        Bars(
            f"{pulls:,} pull{'s' if pulls > 1 else ''}",
            [_cost.dollars(_cost.Month(COST_FILES, COST_SIZE, pulls), packed=packed) for packed in (False, True)],
        )
        for pulls in COST_PULLS
    ]
    series = ["one object each", "packs"]
    title = f"Requests of {COST_FILES:,} files in a month"
    return _svg.bars(title, "dollars", series, groups, logarithmic=True, told=lambda one: f"${one:,.2f}")
