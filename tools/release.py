"""Make a release: build, check, describe what is in it (SBOM), and print what would be published.

`./dev release --dry-run` runs this file. It publishes nothing and needs no credential: a person, or a workflow with a
trusted publisher, uploads what it leaves in `dist/`. The checks: the version is the same everywhere, the changelog has
a section for it, a tag of this version, if there is one, names this commit, nothing is uncommitted, the wheel holds the
package and nothing else, and the registry will accept the metadata (`twine check`).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import wheels
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = wheels.ROOT
EXTRAS = ("spark", "gcp", "azure")
"""The extras whose packages the SBOM lists. `connect` has the same modules as `spark`, from another package."""

_LOCKED = re.compile(r"([a-z0-9._-]+)==([^\s;]+)")
_NEEDED_BY = re.compile(r"^    #(?: via)? +([a-z0-9._-]+)", re.MULTILINE)


class Locked(NamedTuple):
    """A package of the lock, and the packages that need it."""

    name: str
    version: str
    needed_by: frozenset[str]


def problems(project: dict[str, Any], *, release: bool) -> Iterator[str]:
    """Yield what contradicts the version of pyproject.toml; `release`: also what a dry run may leave open."""
    version = str(project["version"])
    testing = tomllib.loads((ROOT / "testing" / "pyproject.toml").read_text())["project"]
    if testing["version"] != version or f"bayou=={version}" not in testing["dependencies"]:
        yield f"testing/pyproject.toml is not for version {version}"
    heading = re.search(r"^## \[([^\]]+)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or heading.group(1) != version:
        yield f"the first section of CHANGELOG.md is not that of {version}"
    elif release and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading.group(2)):
        yield f"CHANGELOG.md has no date for {version}, but: {heading.group(2)}"
    tagged = git("rev-list", "-n1", f"v{version}")
    if tagged and tagged != git("rev-parse", "HEAD"):
        yield f"the tag v{version} names another commit"
    if release and git("status", "--porcelain"):
        yield "there are changes that are not committed"


def git(*arguments: str) -> str:
    """Return the output of git; nothing if it fails, as outside a checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def foreign_files(wheel: Path, version: str) -> list[str]:
    """Return the files of a wheel that are not the package's, or that only tests use."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    expected = ("bayou/", f"bayou-{version}.dist-info/")
    for_tests = re.compile(r"(^|/)(test(s|ing)?[/_.]|conftest\.py)")
    return [name for name in names if not name.startswith(expected) or for_tests.search(name)]


def shipped(project: dict[str, Any], lock: str) -> list[Locked]:
    """Return the packages of the lock that users get: dependencies and extras of Bayou, and what these need.

    The lock says for each package who needs it; packages that only developers need are not reached from Bayou.
    """
    direct = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    reached = {str(canonicalize_name(Requirement(line).name)) for line in direct}
    found = [
        Locked(match.group(1), match.group(2), frozenset(_NEEDED_BY.findall(entry)))
        for entry in re.split(r"^(?=[a-z0-9._-]+==)", lock, flags=re.MULTILINE)
        if (match := _LOCKED.match(entry))
    ]
    while more := {package.name for package in found if reached & package.needed_by} - reached:
        reached |= more
    return [package for package in found if package.name in reached]


def sbom(project: dict[str, Any], wheel: Path) -> str:
    """Return the software bill of materials of a wheel in CycloneDX's JSON form, with who needs what."""
    version = project["version"]
    program = Component(
        name="bayou",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="bayou",
        purl=PackageURL("pypi", name="bayou", version=version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest())],
    )
    packages = shipped(project, (ROOT / "requirements.lock").read_text())
    parts = {
        package: Component(
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            bom_ref=f"{package.name}=={package.version}",
            purl=PackageURL("pypi", name=package.name, version=package.version),
        )
        for package in packages
    }
    bom = Bom(components=parts.values())
    bom.metadata.component = program
    bom.register_dependency(program, [parts[package] for package in packages if "bayou" in package.needed_by])
    for package, part in parts.items():
        bom.register_dependency(part, [parts[other] for other in packages if package.name in other.needed_by])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="a date, a tag and a clean checkout may be missing yet")
    dry_run = parser.parse_args().dry_run
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    if found := [*problems(project, release=not dry_run)]:
        sys.exit("\n".join(f"release: {problem}" for problem in found))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    sdist, wheel = wheels.build(dist)
    if foreign := foreign_files(wheel, version):
        sys.exit(f"release: the wheel holds {', '.join(foreign[:5])}")
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=False)
    if checked.returncode != 0:
        sys.exit("release: the registry would refuse this")
    bill = dist / f"bayou-{version}.cdx.json"
    bill.write_text(sbom(project, wheel))
    print(f"bayou {version}, commit {git('rev-parse', '--short', 'HEAD') or 'unknown'}: would be published")
    for path in (sdist, wheel, bill):
        print(f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.stat().st_size:>9,}  dist/{path.name}")
    print("publish with: twine upload dist/*.whl dist/*.tar.gz; then: git tag -s v" + version)


if __name__ == "__main__":
    main()
