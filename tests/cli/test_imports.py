"""What a command loads before it does anything (V16)."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import pytest

from bayou.data.records import Records
from bayou.models import create_model
from bayou.repo import init_repo, open_repo

HEAVY = {
    "pyarrow",
    "pandas",
    "boto3",
    "botocore",
    "pyspark",
    "rich",
    "yaml",
    "jsonschema",
    "tomlkit",
    "importlib.metadata",
}

LIGHT = {"click", "msgspec", "typing_extensions"}
"""What every command may load: the parser of the command line, and msgspec, which loads typing_extensions."""

SYNC = """
import sys
import bayou.sync.service
from bayou.cli import main
from bayou.sync.report import SyncReport

bayou.sync.service.sync = lambda *args, **kwargs: SyncReport()
main()
"""


def loaded(ran) -> set[str]:
    assert ran.code == 0, ran.err
    return set(re.findall(r"^import time:.*\| +(\S+)$", ran.err, re.MULTILINE))


@pytest.fixture
def imports(processes):
    """Return the modules that a process loads, but for those that Python loads anyway."""

    def run(*arguments: str) -> set[str]:
        return loaded(processes.finish(processes.start(["-X", "importtime", *arguments])))

    plain = run("-c", "pass")
    return lambda *arguments: run(*arguments) - plain


def foreign(modules: set[str]) -> set[str]:
    """Return the packages of others; what was only looked for in vain (copy does) is none."""
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"bayou"}
    return {name for name in tops if find_spec(name)}


def test_help_loads_the_parser_and_no_command(imports):
    modules = imports("-m", "bayou", "--help")

    assert foreign(modules) == LIGHT
    assert modules & HEAVY == set()
    assert not {name for name in modules if name.startswith(("bayou.objectstore", "bayou.sync", "bayou.config"))}
    assert not {"bayou.cli.render.datastore", "json", "tomllib"} & modules, "no command is loaded to list it"


def test_only_the_version_looks_at_what_is_installed(imports):
    modules = imports("-m", "bayou", "--version")

    assert foreign(modules) == LIGHT
    assert "importlib.metadata" in modules


def test_init_loads_no_store(imports):
    modules = imports("-m", "bayou", "init", "repo")

    assert foreign(modules) == LIGHT
    assert modules & HEAVY == set()
    assert not {name for name in modules if name.startswith(("bayou.objectstore", "bayou.sync"))}


def test_the_command_line_adds_nothing_heavy_to_a_sync(imports, tmp_path):
    init_repo(tmp_path)

    modules = imports("-c", SYNC, "datastore", "sync", "--json")

    assert {"bayou.cli.render.datastore", "bayou.sync.report"} <= modules
    assert modules & HEAVY == set()


RECORDS_NEED_NOT = {"pyarrow", "pandas", "boto3", "botocore", "pyspark", "rich", "yaml", "jsonschema", "tomlkit", "cel"}


@pytest.fixture
def with_data(tmp_path):
    """A repo that shares its data through a directory store, with an item; and its model's name."""
    repo = init_repo(tmp_path)
    (tmp_path / "store").mkdir()
    repo.file.write_text(repo.file.read_text() + f'url = "{(tmp_path / "store").as_uri()}"\n')
    made = create_model(repo, "net", "web")
    with Records(open_repo(tmp_path)) as records:
        records.data.save(made.ref, "report", b'{"a": 1}')


@pytest.mark.parametrize(
    "args",
    [
        ("data", "list"),
        ("data", "list", "web", "--tag", "a=b"),
        ("data", "versions", "web", "report"),
        ("data", "get", "web", "report"),
        ("data", "gc", "--dry-run"),
        ("data", "put", "web", "report", "bayou.toml", "--offline"),
    ],
)
def test_data_is_listed_and_read_without_a_parser_or_an_engine(imports, with_data, args):
    modules = imports("-m", "bayou", *args)

    assert {name.partition(".")[0] for name in modules} & RECORDS_NEED_NOT == set()
    assert not {name for name in modules if name.startswith(("bayou.data.query", "bayou.spark"))}


@pytest.mark.parametrize("args", [("model", "describe", "spark/sql"), ("model", "types")])
def test_a_type_of_spark_is_told_of_without_spark(imports, with_data, args):
    modules = imports("-m", "bayou", *args)

    assert "bayou.models.types.sql" in modules
    assert not {name for name in modules if name.startswith(("bayou.spark", "pyspark", "pyarrow", "pandas", "grpc"))}


ASKING_NEEDS_NOT = (
    *("obstore", "arro3", "filelock", "hashlib", "concurrent.futures", "asyncio", "email", "http", "subprocess"),
    *(
        "bayou.objectstore.open",
        "bayou.objectstore.store",
        "bayou.objectstore.backends.obstore",
        "bayou.objectstore.backends.credentials",
    ),
    *("bayou.index.node_store", "bayou.index.node_store", "bayou.index.tree", "bayou.index.merge"),
    *("bayou.sync.run", "bayou.sync.context", "bayou.sync.report", "bayou.state.base", "bayou.sync.plan.local_scanner"),
    *("bayou.data.staging", "bayou.data.edit", "bayou.data.edit", "bayou.data.outputs"),
    *("bayou.data.catalog.follow_store", "bayou.data.catalog.backfill", "bayou.data.catalog.follow_directory"),
)
"""What a command that asks the catalog does without: the store, the index, the sync, and all that writes."""


@pytest.fixture
def settled(tmp_path, with_data):
    """The same, with a catalog that is up to date."""
    with Records(open_repo(tmp_path)) as records:
        records.catalog.refresh()


@pytest.mark.parametrize(
    "args",
    [("data", "list"), ("data", "versions", "web", "report"), ("data", "query", 'name == "report" && latest')],
)
def test_the_catalog_is_asked_without_the_store_the_index_or_the_sync(imports, settled, args):
    """A list of a hundred thousand versions is a matter of a moment, and must not wait for what it does not use."""
    modules = imports("-m", "bayou", *args)

    assert "bayou.data.catalog.catalog" in modules
    assert {name for name in ASKING_NEEDS_NOT if name in modules} == set()
    assert len({name for name in modules if name.startswith("bayou")}) < 110


def test_a_look_at_data_takes_no_lease(imports, with_data):
    """V15: what is only looked at needs neither a session nor a lease, so neither is there."""
    modules = imports("-m", "bayou", "data", "list")

    assert not {name for name in modules if name.startswith(("bayou.session", "bayou.leases"))}
