"""The catalog: what data, outputs and runs there are, for fast look-up. Derived, and mended by itself (V20)."""

from bayou.records.catalog.catalog import BadFile, Catalog
from bayou.records.catalog.refreshed import Refreshed
from bayou.records.catalog.rows import Made, OutputRow, RunRow, VersionRow

__all__ = ["BadFile", "Catalog", "Made", "OutputRow", "Refreshed", "RunRow", "VersionRow"]
