"""The catalog: a SQLite file of all versions, outputs and runs. It is derived, and repairs itself (V20)."""

from bayou.data.catalog.catalog import BadFile, Catalog
from bayou.data.catalog.derive import RefreshReport
from bayou.data.catalog.rows import OutputRow, RunRow, SavedVersion, VersionRow

__all__ = ["BadFile", "Catalog", "OutputRow", "RefreshReport", "RunRow", "SavedVersion", "VersionRow"]
