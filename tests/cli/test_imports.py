"""What a command loads before it does anything (V16)."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import pytest

from bayou.repo import init_repo

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

SYNC = """
import sys, types
import bayou.sync
from bayou.cli import main
from bayou.sync.report import SyncReport

api = types.ModuleType("bayou.sync.api")
api.sync = lambda *args, **kwargs: SyncReport()
sys.modules["bayou.sync.api"] = bayou.sync.api = api
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


def test_help_loads_click_and_nothing_else(imports):
    modules = imports("-m", "bayou", "--help")

    assert foreign(modules) == {"click"}
    assert modules & HEAVY == set()
    assert not {name for name in modules if name.startswith(("bayou.store", "bayou.sync", "bayou.config"))}
    assert not {"bayou.cli.documents", "json", "tomllib"} & modules, "no command is loaded to list it"


def test_only_the_version_looks_at_what_is_installed(imports):
    modules = imports("-m", "bayou", "--version")

    assert foreign(modules) == {"click"}
    assert "importlib.metadata" in modules


def test_init_loads_no_store(imports):
    modules = imports("-m", "bayou", "init", "repo")

    assert foreign(modules) == {"click"}
    assert modules & HEAVY == set()
    assert not {name for name in modules if name.startswith(("bayou.store", "bayou.sync"))}


def test_the_command_line_adds_nothing_heavy_to_a_sync(imports, tmp_path):
    init_repo(tmp_path)

    modules = imports("-c", SYNC, "datastore", "sync", "--json")

    assert {"bayou.cli.documents", "bayou.sync.report"} <= modules
    assert modules & HEAVY == set()
