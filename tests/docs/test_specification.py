"""docs/design.md lists fields, columns, keys, limits and codes: each list is the one that the code has."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import fields

import bayou.config.load
from bayou.core import errors, limits
from bayou.data.catalog import schema
from bayou.data.changes import ChangeSet
from bayou.data.layout import Owner
from bayou.data.manifest import ManifestFile
from bayou.data.metadata import Metadata
from bayou.data.outputs import Output
from bayou.data.query.expression import KNOWN
from bayou.data.runs import Attempt, JobRecord, Run, StepRecord
from bayou.data.spool import SpoolRecord
from bayou.engine import select
from bayou.index.entry import Entry
from bayou.index.log import LogRow
from bayou.index.parquet import BRANCH, LEAF
from bayou.leases.objects import HeldLease
from bayou.packs.archive import LIST_FIELDS
from bayou.state.database import Database
from bayou.sync import run
from bayou.sync.plan.decision_table import Action
from bayou.workflows import read as workflow

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
PLAIN = " ".join(DESIGN.split())


def names(*structs: type[Struct]) -> list[set[str]]:
    return [{field.name for field in fields(struct)} for struct in structs]


def section(number: int) -> str:
    begin = re.search(rf"^## {number}\. ", DESIGN, re.MULTILINE)
    end = re.search(rf"^## {number + 1}\. ", DESIGN, re.MULTILINE)
    assert begin is not None
    assert end is not None
    return DESIGN[begin.start() : end.start()]


def listed(before: str) -> set[str]:
    """Return the words in the next backquotes, or braces, after a text of the page."""
    (found,) = re.findall(rf"{re.escape(before)}\s*[`{{]+([^`}}]*)", PLAIN)
    return set(re.findall(r"[a-z_0-9]+", found))


def test_the_databases_have_these_formats_tables_and_columns(tmp_path: Path) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([\w ]+)` \| ", section(9), re.MULTILINE))
    with Database(tmp_path / "state" / "sync.db") as database:
        ((version,),) = database.rows("PRAGMA user_version")
        tables = {str(name) for (name,) in database.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {
            name: {str(row[1]) for row in database.rows(f"PRAGMA table_info({name})")}
            for name in tables - {"sqlite_sequence"}
        }

    assert {name: set(text.split()) for name, text in rows.items()} == columns
    assert f"`sync.db` is a SQLite database with `user_version` {version}." in DESIGN
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema.SCHEMA)
        catalog = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    described = re.findall(r"^\| (`[\w` ]+`) \| ", section(21), re.MULTILINE)
    assert {name for row in described for name in re.findall(r"\w+", row)} == catalog
    assert f"`synchronous = NORMAL`, `user_version` {schema.VERSION})" in DESIGN


def test_entries_nodes_packs_and_the_log_have_these_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:text|int64|int8|32 bytes)", section(4), re.MULTILINE)
    leaf = re.findall(r"^\| `(\w+)` \| (?:required|optional)", section(4), re.MULTILINE)
    branch = re.findall(r"\| \| `(\w+)` \| required", section(4))

    assert rows == [field.name for field in fields(Entry)] == leaf == LEAF.names
    assert branch == BRANCH.names
    assert re.findall(r'"fields": \[(.*)\]', section(4)) == [", ".join(f'"{name}"' for name in LIST_FIELDS)]
    assert listed("**Log.** A row is") == names(LogRow)[0] - {"mass_delete", "extra"}


def test_records_have_these_fields() -> None:
    (metadata,) = re.findall(r"\*\*`metadata\.yaml`\*\* has (.*?) Readers ignore", PLAIN)
    assert set(re.findall(r"(?:^|· )`(\w+)`", metadata)) == names(Metadata)[0]
    assert listed("`owner`") == names(Owner)[0]
    assert listed("**Outputs** have") == names(Output)[0]
    assert listed("**Runs** have") == names(Run)[0]
    assert [listed("a job is"), listed("a step"), listed("`attempts` has")] == names(JobRecord, StepRecord, Attempt)
    assert listed("`state/changes/<ulid>.json` as") == {"owner", "place"} | names(ChangeSet)[0]
    assert listed("the record `<ulid>.json`") == names(SpoolRecord)[0]
    assert listed("The manifest is `{format: 1, files: [") == names(ManifestFile)[0]
    assert listed("held ") == names(HeldLease)[0]


def test_definitions_queries_and_decisions_have_these_words() -> None:
    assert listed("`workflows/<name>.yaml` has") == set(workflow.TOP)
    assert listed("; a job has") == set(workflow.JOB)
    assert listed("; a step has") == set(workflow.STEP)
    assert listed("`bayou data query` takes a CEL expression over") == set(KNOWN)
    table = set(re.findall(r"`([a-z-]+)`", section(11)))
    assert {action.value for action in Action} <= table


def test_the_configuration_has_these_keys() -> None:
    rows = re.findall(r"^\| (`[a-z_.`, ]+`) \| (.*)\|$", section(2), re.MULTILINE)
    keys = {name for row, _ in rows for name in re.findall(r"[a-z_.]+", row)}
    known = bayou.config.load._KNOWN

    assert keys == {f"{table}.{key}" for table in known if table for key in known[table]} | {"repo_id"}
    source = Path(bayou.config.load.__file__).read_text()
    assert set(re.findall(r"`(BAYOU_\w+)`", section(2))) >= set(re.findall(r'environ\.get\("(BAYOU_\w+)"', source))


def test_the_exit_codes_are_those_of_the_errors() -> None:
    codes = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \| ", section(28), re.MULTILINE) for code in row.split(",")
    }
    found = {
        error.exit_code for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "exit_code")
    }

    assert found | {0, 4, 143} == codes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (limits.HEAD_BYTES >> 20, "head; log page; lease; node, as stored | {} MiB;"),
        (limits.NODE_ROWS, "rows of a node; text of a node; one text | {:,};"),
        (limits.LOG_PAGES_MAX, "log pages followed back | 63; {:,} |"),
        (limits.MANIFEST_BYTES >> 20, "`manifest.json`; files of a version | {} MiB; 100,000 |"),
        (limits.EXPRESSION_CHARACTERS, "its result | {:,} characters; 20 s, 1 GiB; 64 MiB |"),
        (select.LARGE, "a local Spark server runs | {:,}, or"),
        (select.SESSION_S, "less the time on Spark exceed {:g} s"),
        (select.START_S, "and {:g} s more where no server runs"),
        (run.MOST_HELD, "A sync of more than {:,} paths"),
        (select.CLUSTER_FILES, "does not begin with `local`) | {:,}, and 1 GiB"),
    ],
)
def test_a_limit_is_that_of_the_code(number: int, text: str) -> None:
    assert text.format(number) in PLAIN


@pytest.mark.parametrize(
    ("cost", "row"),
    [
        (select.SCAN, "| list, compare, check entries"),
        (select.TRANSFER, "| move small files"),
        (select.RECORDS, "| parse records"),
    ],
)
def test_the_costs_of_engines_and_where_spark_pays_are_those_of_the_rule(cost: select.WorkCost, row: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text().splitlines()

    def pays(cores: int) -> str:
        limits = [cost.limit(cores, server_runs=runs) for runs in (True, False)]
        return "never" if None in limits else "from " + " / ".join(f"{limit:,}" for limit in limits)

    (line,) = (line for line in page if line.startswith(row))
    assert [cell.strip() for cell in line.split("|")[2:6]] == [
        f"{cost.here_us:g} µs",
        f"{cost.spark_us:g} µs",
        pays(2),
        pays(8),
    ]
