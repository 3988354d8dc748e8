"""The packages that a light installation does not have: which extra of Bayou brings them, and the error that says so.

`pip install bayou` installs what sync, data, models and workflows need. Everything else belongs to an extra, and code
that needs it calls `require` before it imports it. This is the only place that knows the names of the extras.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from bayou.core.errors import PackageMissing


class Extra(Struct, frozen=True):
    """An extra of Bayou: its name, the modules that Bayou imports of it with their packages, and a remark."""

    name: str
    modules: Mapping[str, str]
    remark: str = ""

    @property
    def hint(self) -> str:
        return f"install it with: pip install 'bayou[{self.name}]'{self.remark}"


SPARK = Extra(
    "spark",
    {"pyspark": "pyspark", "pandas": "pandas", "pyarrow": "pyarrow", "grpc": "grpcio"},
    ", or 'bayou[connect]' for a server that runs elsewhere",
)
GCP = Extra("gcp", {"google.oauth2.service_account": "google-auth"})
AZURE = Extra("azure", {"azure.storage.blob": "azure-storage-blob"})


def first_missing(extra: Extra) -> str | None:
    """Return the first package of an extra that is not installed; None if all are. Nothing of them is imported."""
    from importlib.util import find_spec  # noqa: PLC0415  (most commands need no extra)

    for module, package in extra.modules.items():
        try:
            if find_spec(module) is None:
                return package
        except ImportError:  # of a package that should hold it
            return package
    return None


def require(extra: Extra, what: str) -> None:
    """Raise `PackageMissing` unless an extra is installed; `what` needs it, as in "Spark SQL"."""
    package = first_missing(extra)
    if package is not None:
        raise PackageMissing(f"{what} needs {package}, which is not installed", hint=extra.hint)
