"""An installation without extras: everything but Spark works, and a command that needs an extra names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bayou.core.errors import PackageMissing
from bayou.core.extras import AZURE, GCP, SPARK, Extra, first_missing, require
from bayou.engine.select import TRANSFER, Selector

LIGHT = """
import json, os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas", "pyarrow", "grpc", "google", "azure"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from bayou.cli import run

os.chdir(sys.argv[1])
for command in json.loads(sys.argv[2]):
    print(f"\\x1e{run(command)}")
    print("\\x1e", file=sys.stderr)
"""
"""Run commands one after the other in a process that cannot import what the extras bring."""

WORKS = [
    ["model", "create", "host/linux", "web1"],
    ["data", "put", "web1", "usage", "bayou.toml"],
    ["data", "list"],
    ["data", "get", "web1", "usage"],
    ["data", "query", 'name == "usage"'],
    ["data", "gc", "-y"],
    ["model", "create", "command/shell", "hello", "--arg", "run=echo hello"],
    ["model", "run", "hello", "execute"],
    ["model", "describe", "spark/sql"],
    ["datastore", "sync"],
    ["datastore", "status"],
    ["datastore", "verify", "--deep"],
    ["datastore", "gc"],
    ["datastore", "compact"],
]

NEEDS_SPARK = [
    ["data", "sql", "select 1"],
    ["spark", "status"],
    ["spark", "warm"],
    ["datastore", "sync", "--engine", "spark"],
]


def run_light(root: Path, commands: list[list[str]]) -> list[tuple[int, str, str]]:
    """Run commands in a repo; return the exit code, the output and the errors of each."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, root, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    first, *rest = done.stdout.split("\x1e")
    ends = [part.partition("\n") for part in rest]
    outputs = [first, *(output for _, _, output in ends)]
    return [(int(code), outputs[n], done.stderr.split("\x1e")[n]) for n, (code, _, _) in enumerate(ends)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repo that shares its data through a directory, made by a light installation."""
    root = tmp_path_factory.mktemp("light")
    (root / "shared").mkdir()
    setup = [["init", "repo"], ["datastore", "setup", "--repo", "repo", f"file://{root}/shared"]]
    assert [code for code, *_ in run_light(root, setup)] == [0, 0]
    return root / "repo"


def test_everything_but_spark_works(repo: Path) -> None:
    results = run_light(repo, WORKS)

    assert [(command, err) for command, (code, _, err) in zip(WORKS, results, strict=True) if code != 0] == []
    assert "usage" in results[2][1]
    assert not [err for *_, err in results if "Spark" in err]


def test_a_command_on_spark_names_the_extra(repo: Path) -> None:
    for command, (code, out, err) in zip(NEEDS_SPARK, run_light(repo, NEEDS_SPARK), strict=True):
        assert (code, out) == (1, ""), command
        assert "needs pyspark, which is not installed" in err
        assert "hint: install it with: pip install 'bayou[spark]'" in err
        assert "Traceback" not in err


def test_what_was_set_to_run_on_spark_runs_here_with_a_warning(repo: Path) -> None:
    """The user has set Spark up, so the command says why this process does the work."""
    with (repo / "bayou.toml").open("a") as settings:
        settings.write("[sync]\npoint_limit = 1\n")

    ((code, out, err),) = run_light(repo, [["datastore", "verify"]])

    assert code == 0, err
    assert "all is well" in out
    assert "by this process alone, since Spark could not: work on Spark needs pyspark" in err


def test_without_spark_this_process_does_any_number_of_files() -> None:
    selector = Selector(cores=2, installed=lambda: False)

    assert selector.limit(TRANSFER) is None
    assert not selector.choose(TRANSFER, 10_000_000).spark
    assert Selector(cluster=True, installed=lambda: False).choose(TRANSFER, 200_000).spark, (
        "a configured cluster is no guess"
    )


def test_the_extras_are_those_of_the_distribution() -> None:
    """Each package that code requires belongs to the extra that its error names."""
    from importlib.metadata import requires

    declared = [line.replace('"', "'") for line in requires("bayou") or ()]
    for extra in (SPARK, GCP, AZURE):
        for package in extra.modules.values():
            if package != "grpcio":  # which pyspark[connect] brings
                assert any(line.startswith(package) and f"extra == '{extra.name}'" in line for line in declared)


def test_what_is_installed_is_found_and_what_is_not_is_named() -> None:
    there = Extra("some", {"json": "json", "xml.dom": "xml"})
    absent = Extra("other", {"json": "json", "no_such_parent.child": "absent-package"})

    assert first_missing(there) is None
    require(there, "a test")
    assert first_missing(absent) == "absent-package"
    with pytest.raises(PackageMissing, match="a test needs absent-package") as raised:
        require(absent, "a test")
    assert raised.value.hint == "install it with: pip install 'bayou[other]'"
