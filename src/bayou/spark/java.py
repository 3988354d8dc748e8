"""Find a Java that can run Spark. Its `release` file tells its version, so that this rarely has to start a JVM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from bayou.core.errors import JavaMissing, JavaTooOld

OLDEST = 17

USUAL_HOMES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
"""Patterns of the directories in which systems install Java."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PRINTED = re.compile(r'version "([^"]+)"')

_HOW = (
    "install it with: sudo apt-get install openjdk-17-jre-headless (Debian, Ubuntu), "
    "or brew install openjdk@17 (macOS); or set JAVA_HOME"
)


class Java(Struct, frozen=True):
    """An installed Java, with the version that it reports: `17.0.15`."""

    home: Path
    version: str

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        """Return 17 for `17.0.15`, and 8 for `1.8.0_402`."""
        numbers = re.findall(r"\d+", self.version)
        return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough: in JAVA_HOME, on the PATH, in the usual directories."""
    too_old: Java | None = None
    for home in _homes(os.environ if environ is None else environ):
        java = _read_home(home)
        if java is None:
            continue
        if java.major >= OLDEST:
            return java
        too_old = too_old or java
    if too_old is not None:
        raise JavaTooOld(f"Spark needs Java {OLDEST} or newer, and {too_old.home} is Java {too_old.version}", hint=_HOW)
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and there is none", hint=_HOW)


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if configured := environ.get("JAVA_HOME"):
        yield Path(configured)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(os.path.realpath(found)).parent.parent
    for pattern in USUAL_HOMES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _read_home(home: Path) -> Java | None:
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    version = _release_version(home / "release") or _printed_version(binary)
    return Java(home, version) if version and re.match(r"\d", version) else None


def _release_version(release: Path) -> str | None:
    try:
        found = _RELEASE.search(release.read_text(errors="replace"))
    except OSError:
        return None
    return found and found[1]


def _printed_version(binary: Path) -> str | None:
    """Run a Java that has no `release` file for its version. The stub `java` of macOS is one, and fails."""
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, errors="replace", timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _PRINTED.search(answer.stderr)
    return found and found[1]
