"""Write the measured part of docs/benchmarks.md, and its plots, from bench/results/*.json.

    ./dev bench report [--results bench/results]

Results come from `--json` of the other benchmarks: `./dev bench sync --json bench/results/sync.json`. The report takes
nothing else: what has no file there is "not measured". It replaces what is between the two markers in
docs/benchmarks.md, and docs/plots/*.svg.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import _cost
import _tables
from _results import HERE, Result, load
from _tables import Plots, machine_sentence, origin
from msgspec import Struct

BEGIN = "<!-- measured: begin. `./dev bench report` writes everything up to the end marker. -->"
END = "<!-- measured: end -->"
DOCUMENT = HERE.parent / "docs" / "benchmarks.md"
PLOTS = HERE.parent / "docs" / "plots"
RESULTS = HERE / "results"

TRIPLE = "Tools' columns: seconds / CPU seconds / requests."

Results = Mapping[str, Result]
"""What was measured, by the name of the benchmark."""


class Part(Struct, frozen=True):
    """A section of one benchmark: what it writes from a result. `key` names its file in the results."""

    key: str
    heading: str
    command: str
    write: Callable[[Result], tuple[list[str], Plots]]


def render(results: Results) -> tuple[str, Plots]:
    """Return the measured part, as Markdown with its markers, and the plots that it shows."""
    lines = [BEGIN, "", "## Measured", "", *machines(results), ""]
    plots: Plots = {}
    for part in PARTS:
        lines += [f"### {part.heading}", ""]
        result = results.get(part.key)
        if result is None:
            lines += [f"Not measured (`{part.command} --json bench/results/{part.key}.json`).", ""]
            continue
        text, drawn = part.write(result)
        lines += [
            origin(result, part.command),
            "",
            *text,
            *images(drawn),
            *result.notes,
            *([""] if result.notes else []),
        ]
        plots |= drawn
    text, drawn = sizes(results)
    lines += ["### Time and requests over the number of files", "", *text, *images(drawn)]
    plots |= drawn
    text, drawn = cost()
    lines += ["### What requests cost", "", *text, *images(drawn)]
    plots |= drawn
    return "\n".join([*lines, END]), plots


def machines(results: Results) -> list[str]:
    """Say on which machine it was measured, once for all results that have the same one."""
    known: dict[str, list[str]] = {}
    for key in sorted(results):
        known.setdefault(machine_sentence(results[key].machine), []).append(key)
    if not known:
        return ["Nothing was measured."]
    return [wrapped(f"On this machine ({', '.join(keys)}): {sentence}.") for sentence, keys in known.items()]


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def images(plots: Plots) -> list[str]:
    return [line for name in plots for line in (f"![{name.removesuffix('.svg')}](plots/{name})", "")]


def replace_part(document: str, part: str) -> str:
    """Put a new measured part between the markers; a document without them is an error."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT.name} has no place for it: the lines {BEGIN} and {END}")
    return before + part + after


# ---- sections ----


def write_sync(result: Result) -> tuple[list[str], Plots]:
    rows = result.rows
    text = [*_tables.peers_table(rows), "", TRIPLE, ""]
    alone = [row for row in rows if row.name.startswith("one file of")]
    for row in alone:
        text += [f"Of Bayou alone, {row.name}: {row.time:.1f} s, {row.memory_mb or 0:.0f} MB of memory.", ""]
    return text, {"sync-ratios.svg": _tables.ratios_plot("Sync against the better of rclone and s5cmd", rows)}


def write_bulk(result: Result) -> tuple[list[str], Plots]:
    text = [*_tables.peers_table(result.rows), "", TRIPLE, ""]
    return text, {
        "bulk-ratios.svg": _tables.ratios_plot("Many files against the better of rclone and s5cmd", result.rows)
    }


def write_million(result: Result) -> tuple[list[str], Plots]:
    title = "Push on Spark as the number of files grows"
    return [*_tables.growth_table(result.rows), ""], {"million.svg": _tables.growth_plot(title, result.rows)}


def write_content(result: Result) -> tuple[list[str], Plots]:
    text = _tables.jobs_table(result.rows, tool="store", compared="ratio to one object each")
    return [*text, ""], {"content.svg": _tables.jobs_plot("Spark over the content of a store", result.rows)}


def write_puts(result: Result) -> tuple[list[str], Plots]:
    text = _tables.jobs_table(result.rows, tool="tool", compared="ratio to before")
    return [*text, ""], {"puts.svg": _tables.jobs_plot("Single puts, and a fresh clone", result.rows)}


PARTS = (
    Part("sync", "Sync against rclone and s5cmd", "./dev bench sync", write_sync),
    Part("bulk", "Many files against rclone and s5cmd", "./dev bench bulk", write_bulk),
    Part("million", "Up to a million files on Spark", "./dev bench bulk --million", write_million),
    Part("content", "Spark over content", "./dev bench content", write_content),
    Part("puts", "Single puts, and a fresh clone", "./dev bench puts", write_puts),
)


def sizes(results: Results) -> tuple[list[str], Plots]:
    rows = [row for key in ("sync", "bulk") if key in results for row in results[key].rows]
    plots = _tables.size_plots(rows)
    if not plots:
        return ["Not measured.", ""], {}
    return ["Cold pushes and pulls of the tables above; both axes are logarithmic.", ""], plots


def cost() -> tuple[list[str], Plots]:
    files, size = _tables.COST_FILES, _tables.COST_SIZE
    month = _cost.Month(files, size, 1)
    packs, nodes = _cost.objects(month, packed=True), _cost.nodes(files)
    assumed = (
        f"Computed, not measured: requests of a store of {files:,} files of {size:,} bytes in a month, by the prices "
        f"of S3 Standard in us-east-1 (${_cost.PUT * 1000:g} for 1,000 PUT, ${_cost.GET * 1000:g} for 1,000 GET). "
        "Assumed are one push of everything in one commit, and pulls by fresh clones, each of which reads every object "
        f"once and whole; {packs:,} full packs of {_cost.PACK_BYTES >> 20} MiB, not compressed; about {nodes:,} nodes "
        "of the index, and the head, in both cases; no retry and no listing. Storage and traffic are not in it."
    )
    text = [wrapped(assumed), "", *_cost.table(files, size, _tables.COST_PULLS), ""]
    return text, {"cost.svg": _tables.cost_plot()}


def read_results(folder: Path) -> dict[str, Result]:
    found = ((part.key, load(folder / f"{part.key}.json")) for part in PARTS)
    return {key: result for key, result in found if result is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = read_results(options.results)
    part, plots = render(results)
    DOCUMENT.write_text(replace_part(DOCUMENT.read_text(), part))
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.svg"):
        if old.name not in plots:
            old.unlink()
    for name, drawn in plots.items():
        (PLOTS / name).write_text(drawn)
    missing = [part.key for part in PARTS if part.key not in results]
    print(f"wrote {DOCUMENT.name} and {len(plots)} plots; not measured: {', '.join(missing) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
