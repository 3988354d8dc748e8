"""The catalog: what data, outputs and runs there are, for fast look-up. Derived, and mended by itself (V20)."""

from bayou.data.catalog.catalog import BadFile, Catalog
from bayou.data.catalog.derive import Refreshed
from bayou.data.catalog.rows import Made, OutputRow, RunRow, VersionRow

__all__ = ["BadFile", "Catalog", "Made", "OutputRow", "Refreshed", "RunRow", "VersionRow"]
