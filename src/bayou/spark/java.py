"""Which Java runs Spark: found and judged by its files, so that asking costs no start of a JVM."""

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

PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
"""Where systems put Java when they do not put it on the PATH."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SPOKEN = re.compile(r'version "([^"]+)"')

_HOW = (
    "install it with: sudo apt-get install openjdk-17-jre-headless (Debian, Ubuntu), "
    "or brew install openjdk@17 (macOS); or set JAVA_HOME"
)


class Java(Struct, frozen=True):
    """An installed Java, and its version as it calls itself: `17.0.15`."""

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
    """Return the first Java that is new enough: of JAVA_HOME, of the PATH, of the usual places."""
    too_old: Java | None = None
    for home in _homes(os.environ if environ is None else environ):
        java = _look(home)
        if java is None:
            continue
        if java.major >= OLDEST:
            return java
        too_old = too_old or java
    if too_old is not None:
        raise JavaTooOld(f"Spark needs Java {OLDEST} or newer, and {too_old.home} is Java {too_old.version}", hint=_HOW)
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and there is none", hint=_HOW)


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if told := environ.get("JAVA_HOME"):
        yield Path(told)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(os.path.realpath(found)).parent.parent
    for pattern in PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _look(home: Path) -> Java | None:
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    version = _written(home / "release") or _spoken(binary)
    return Java(home, version) if version and re.match(r"\d", version) else None


def _written(release: Path) -> str | None:
    try:
        found = _RELEASE.search(release.read_text(errors="replace"))
    except OSError:
        return None
    return found and found[1]


def _spoken(binary: Path) -> str | None:
    """Ask a Java that has no `release` file; macOS's own `java` is one, and says that there is none."""
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, errors="replace", timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _SPOKEN.search(answer.stderr)
    return found and found[1]
