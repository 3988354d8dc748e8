"""A process that feeds mutated records and definitions to everything that reads them.

    python -m tests.fuzz.records_inputs KIND SEED FIRST COUNT

It ends with 0 and says how many inputs were read and how many refused. An exception that is not one of ours, a crash,
too much memory (`RLIMIT_AS`) or one input that takes too long (`SIGALRM`) ends it otherwise; its standard error has
the number of the input, or of one at most 500 before it, and `SEED` and that number make the input again.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayou.cli.render import data as render_data
from bayou.cli.render import model as render_model
from bayou.cli.render import workflow as render_workflow
from bayou.core import limits
from bayou.core.documents import Unreadable, read_json, read_yaml
from bayou.core.errors import BayouError
from bayou.data import document
from bayou.data.catalog.backfill import from_row, to_row
from bayou.data.catalog.derive import RecordRead, derive
from bayou.data.catalog.rows import VersionRow
from bayou.data.catalog.schema import SCHEMA, TABLES, key_of, output_of, put, run_of, values, version_of
from bayou.data.items import metadata_of
from bayou.data.layout import Owner, version_path
from bayou.data.metadata import Metadata
from bayou.data.outputs import Output
from bayou.data.query.expression import FIELDS
from bayou.data.retention.rules import evaluate
from bayou.data.runs import Run
from bayou.data.sync_hooks import renumber
from bayou.models.definition import load_definition
from bayou.models.expressions import check, inputs_used
from bayou.models.types.validation import unusable
from bayou.repo import init_repo
from bayou.workflows.definition import parse_source
from bayou.workflows.read import check_graph, read_workflow
from tests.data.hostile import NUMBERS, UNPARSABLE

MEMORY = 3 << 30
SECONDS = 60
"""For one input, on a machine that does much else: far more than any takes, and less than for ever."""

ID = "3f0e7bd2-62cf-4c59-9d0f-36d0a2f3e0b1"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
METADATA = "data/net/vpc/m/state/1/metadata.yaml"
OUTPUT = "outputs/net/vpc/m/o.yaml"
RUN = "workflow-runs/w/r.yaml"

_METADATA = Metadata(
    ID, "state", 1, "application/json", 2, "44" * 32, Owner("main", "m", "net/vpc", "repo", run="r", step="s"),
    "2026-01-01T00:00:00.000Z", {"env": "prod", "team": "a"}, "7d", "5",
).to_bytes()  # fmt: skip
_STEP = {
    "name": "s",
    "status": "succeeded",
    "model": "main",
    "method": "sync",
    "output": "o",
    "duration_s": 1.5,
    "error": None,
    "data": [{"name": "state", "version": 1, "size": 2, "sha256": None}],
}
_RUN = document.dump(
    {
        "run_id": "r",
        "workflow_id": "w",
        "workflow": "deploy",
        "status": "failed",
        "failed_step": "s",
        "by": "ann",
        "started_at": "2026-01-01T00:00:00.000Z",
        "finished_at": "2026-01-01T00:00:01.000Z",
        "tags": {"a": "b"},
        "inputs": {"n": 1, "list": [1, 2.5, None]},
        "jobs": [{"name": "j", "status": "failed", "steps": [_STEP]}],
    }
)
_OUTPUT = document.dump(
    {
        "id": "o",
        "model": "main",
        "method": "sync",
        "status": "succeeded",
        "duration_s": 2.5,
        "error": None,
        "started_at": "2026-01-01T00:00:00.000Z",
        "inputs": {"a": [1, {"b": "c"}]},
        "tags": {"a": "b"},
        "run": "r",
        "data": [{"name": "state", "version": 1, "size": 2, "sha256": "44" * 32}],
    }
)
_MODEL = f"""id: {ID}
name: web
type: net/vpc
arguments: &a
  region: eu
  hosts: [a, b, "${{{{ inputs.host }}}}"]
methods:
  sync: {{arguments: {{timeout: 5, <<: *a}}}}
tags: {{env: prod}}
""".encode()
_WORKFLOW = f"""id: {ID}
name: deploy
inputs:
  host: {{type: string, default: localhost, pattern: "^[a-z]+$"}}
  count: {{type: integer, minimum: 1}}
jobs:
  - name: build
    steps:
      - name: sync
        model: web
        method: sync
        inputs: {{a: "${{{{ inputs.host + ':80' }}}}", b: [1, 2]}}
        for_each: [1, 2, 3]
      - name: check
        assert: ["${{{{ steps.sync.status == 'succeeded' }}}}"]
  - name: after
    depends_on: [build]
    steps: [{{name: last, model: web, method: sync}}]
""".encode()
SEEDS = {"metadata": _METADATA, "output": _OUTPUT, "run": _RUN, "model": _MODEL, "workflow": _WORKFLOW}
KINDS = (*SEEDS, "any")

_PIECES: tuple[bytes, ...] = (
    *(b"[", b"]", b"{", b"}", b"- ", b"? ", b": ", b",", b"&a ", b"*a", b"<<: *a", b"<<: [*a, *a]", b"!!int ", b"!x "),
    *(b"!!set ", b"!!binary ", b"|\n", b">-\n", b"'", b'"', b"#", b"%TAG ! x\n", b"---\n", b"...\n", b"\n", b"\t"),
    *(b"  ", b"\r", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\xed\xa0\x80", b'"\\ud800"'),
    *(b'"\\u0000"', b"\\", b"null", b"~", b"true", b"-1", b"0", b"1e999", b"1.0e+999", b".inf", b".nan", b"1_000"),
    *(
        b"0x7f",
        b"017",
        b"1:2:3",
        b"2026-01-01",
        b"0001-01-01 00:00:00 +23:59",
        b"9999-12-31T23:59:59.999Z",
        b"=",
        b"<<",
    ),
    *(
        b"9223372036854775808",
        b"1" + b"0" * 400,
        b"${{ ",
        b" }}",
        b"${{ inputs.x.map(y, y) }}",
        b"$ref: '#'",
        b"name: ",
    ),
    *(b"=", b"name: ", b"[" * 70, b"{a: " * 70, b"- " * 70, b"x" * 1100),
    *(text[:200].encode() for text in NUMBERS.values()),
    *(data[:500] for data in UNPARSABLE.values()),
)


_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, 10**400, -(2**70), 0.5, 1e308, 1e999),
    *("", "x", "\ud800", "\x00", "\n\x1b[31m\u202e", "é" * 300, "../../x", "run", "0d", "9" * 5000, "2026-01-01"),
    *("2026-99-99T99:99:99.999Z", "0001-01-01T00:00:00+23:59", [], {}, [[]], [{}], [1, "a", None], {"a": 1}, {"": ""}),
    *({"a": {"b": "c"}}, {"name": 1}, [{"name": "x", "version": 2**63, "size": 1}], {"a": "\udfff"}),
    json.loads("[" * 70 + "]" * 70),
)


def made(kind: str, seed: int, number: int) -> bytes:
    """Return one input: a good file with a value changed, or with some bytes, pieces and lines of it changed."""
    chance = random.Random(f"{kind} {seed} {number}")
    which = chance.choice(list(SEEDS)) if kind == "any" else kind
    if chance.random() < 0.4:
        return _with_odd_values(SEEDS[which], chance)
    data = bytearray(SEEDS[which])
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        match chance.randrange(9):
            case 0 if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[at : min(to, at + 40)]
            case 2:
                data[at:at] = data[at:to]
            case 3 | 4:
                data[at:at] = chance.choice(_PIECES)
            case 5:
                other = SEEDS[chance.choice(list(SEEDS))]
                data[at:to] = other[at : to + 20]
            case 6 | 7:  # the value of a line
                lines = bytes(data).split(b"\n")
                line = chance.randrange(len(lines))
                key, colon, _ = lines[line].partition(b": ")
                lines[line] = key + (colon or b": ") + chance.choice(_PIECES)
                data = bytearray(b"\n".join(lines))
            case 8:
                data = bytearray(chance.choice(_PIECES) + bytes(data) + chance.choice(_PIECES))
    return bytes(data)


def _with_odd_values(seed: bytes, chance: random.Random) -> bytes:
    """Return a file that is well-formed, with something else in the place of a value or of a name."""
    fields = read_yaml(seed, limits.DEFINITION_BYTES)
    for _ in range(chance.choice((1, 1, 2))):
        inside = fields
        while True:
            place = chance.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
            below = inside[place]
            if not isinstance(below, dict | list) or not below or chance.random() < 0.3:
                break
            inside = below
        odd = copy.deepcopy(chance.choice(_ODD))
        if isinstance(inside, dict) and chance.random() < 0.2:
            inside[chance.choice(("", "name", "x" * 1100, "<<", "\ud800", "null", "__class__"))] = inside.pop(place)
        elif isinstance(inside, dict) and chance.random() < 0.2:
            del inside[place]
        else:
            inside[place] = odd
        if not fields:
            break
    if chance.random() < 0.3:
        return json.dumps(fields).encode()
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items()).encode(errors="surrogatepass")


class Readers:
    """Every reader, and a catalog that takes what they read."""

    def __init__(self, root: Path) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        for statement in SCHEMA.split(";"):
            self._db.execute(statement)
        self._repo = init_repo(root)
        self._model = self._repo.root / "models" / "net" / "vpc" / "web.yaml"
        self._model.parent.mkdir(parents=True, exist_ok=True)

    def of(self, kind: str) -> Iterable[Callable[[bytes], object]]:
        record = (self.metadata, self.output, self.run, self.evaluated)
        return {
            "metadata": (self.metadata, self.numbered),
            "output": (self.output,),
            "run": (self.run,),
            "model": (self.model,),
            "workflow": (self.workflow,),
        }.get(kind, (*record, self.model, self.workflow, self.json, self.inputs))

    def metadata(self, data: bytes) -> None:
        row = self._catalogued(METADATA, data)
        assert isinstance(row, VersionRow)
        metadata_of(row).to_bytes()
        evaluate([row], NOW, lambda _: True)
        for field in FIELDS.values():
            field.value(row)
        _shown(render_data.items_text([row], 1), render_data.items_json([row], 1))
        _shown(render_data.versions_text([row]), render_data.versions_json([row]))

    def numbered(self, data: bytes) -> None:
        digits = bytes(one for one in data if 48 <= one < 58)[:200].lstrip(b"0").decode() or "1"
        path = METADATA.replace("/1/", f"/{digits}/")
        key_of(path)
        place = version_path(path)
        assert (place is None) == (int(digits) > limits.VERSION_MAX)
        renumber(data, int(digits))

    def output(self, data: bytes) -> None:
        row: Any = self._catalogued(OUTPUT, data)
        found = Output.from_document(document.load(data, OUTPUT), OUTPUT)
        document.dump(found.to_document())
        _shown(render_model.outputs_text([row]), {})
        _shown(render_model.ran_text(found), {})

    def run(self, data: bytes) -> None:
        row: Any = self._catalogued(RUN, data)
        found = Run.from_document(document.load(data, RUN), RUN)
        document.dump(found.to_document())
        _shown(render_workflow.run_text(found, {}), render_workflow.run_json(found, {}))
        _shown(render_workflow.runs_text([row], 1), render_workflow.runs_json([row], 1))

    def evaluated(self, data: bytes) -> None:
        json.dumps(document.load(data, "definitions-evaluated/x.yaml"), default=str)

    def model(self, data: bytes) -> None:
        self._model.write_bytes(data)
        found = load_definition(self._repo, "models/net/vpc/web.yaml")
        json.dumps([found.arguments, found.methods, found.tags])
        check(found.arguments, lambda _: "here")
        inputs_used(found.arguments, lambda _: "here")

    def workflow(self, data: bytes) -> None:
        found, problems = read_workflow(parse_source(data, "workflows/deploy.yaml"), "deploy")
        [str(problem) for problem in problems]
        if found is None:
            return
        check_graph(found)
        for schema in found.inputs.values():
            list(unusable(schema))
        for _, step in found.steps():
            check(step.inputs, lambda _: "here")

    def json(self, data: bytes) -> None:
        read_json(data, limits.HEAD_BYTES)

    def inputs(self, data: bytes) -> None:
        read_yaml(data, limits.DEFINITION_BYTES)

    def _catalogued(self, path: str, data: bytes) -> object:
        """Derive a row, let it cross as Spark's workers do, put it into a catalog and take it out again."""
        row = derive(path, data)
        table, columns = values(row)
        crossed = from_row(to_row(RecordRead(path, columns, None)))
        assert isinstance(crossed, RecordRead)
        assert crossed.row == columns
        put(self._db, table, [(*columns, None)])
        names = ", ".join(f'"{name}"' for name in TABLES[table])
        found = self._db.execute(f"SELECT {names} FROM {table}").fetchone()
        self._db.execute(f"DELETE FROM {table}")
        if table == "version":
            return version_of((*found, True))
        return output_of(found) if table == "output" else run_of(found)


def _shown(parts: Iterable[object], said: object) -> None:
    """Render as a command does, as text and as JSON."""
    "".join(str(part) for part in parts).encode()
    json.dumps(said).encode()


def main(kind: str, seed: int, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    read = refused = 0
    with tempfile.TemporaryDirectory() as root:
        readers = Readers(Path(root))
        for number in range(first, first + count):
            if number % 500 == 0:
                print(number, file=sys.stderr, flush=True)
            data = made(kind, seed, number)
            signal.alarm(SECONDS)
            for reader in readers.of(kind):
                ended = False
                try:
                    reader(data)
                    read += 1
                    ended = True
                except (BayouError, Unreadable):
                    refused += 1
                    ended = True
                finally:
                    if not ended:
                        print(f"{kind} {seed} {number}: {reader} of {data[:3000]!r}", file=sys.stderr)
    print(read, refused)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
