"""The Spark that came with pyspark, found without importing it."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from bayou.core.errors import SparkUnavailable


class SparkHome(Struct, frozen=True):
    """An installed Spark."""

    root: Path
    version: str

    @property
    def jars(self) -> list[Path]:
        """Its classes, in the same order every time: an archive of them is good for one order."""
        return sorted((self.root / "jars").glob("*.jar"))


def find_spark() -> SparkHome:
    """Return the Spark of this Python environment."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SparkUnavailable("pyspark is not installed here", hint="install Bayou again, with what it depends on")
    home = SparkHome(Path(spec.submodule_search_locations[0]), version("pyspark"))
    if not (home.root / "jars").is_dir():
        raise SparkUnavailable(
            f"{home.root} has no Spark of its own, only its client",
            hint="install the package pyspark, or set [spark] remote in bayou.toml",
        )
    return home
