"""How another process opens this store: a worker of Spark has neither our environment nor our login.

A recipe takes along what the client of its own store reads, and nothing else of this environment (V26): a directory
needs nothing, a bucket of S3 nothing of Google's. AWS keys are resolved here and belong to one store; profiles, roles
and containers stay where they are known. Those of Google and Azure are what the environment names.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from bayou.core.structs import SelectiveStruct
from bayou.objectstore.backends import credentials
from bayou.objectstore.open import open_store
from bayou.objectstore.store import Store
from bayou.objectstore.url import parse_url


def _names(prefix: str, words: str) -> frozenset[str]:
    return frozenset(prefix + word for word in words.split())


_CLIENT = (
    "ALLOW_INVALID_CERTIFICATES DEFAULT_CONTENT_TYPE HTTP1_ONLY HTTP2_ONLY"
    " PROXY_CA_CERTIFICATE PROXY_EXCLUDES PROXY_URL"
)
"""What every client reads, behind the prefix of its provider."""

SETTINGS: Mapping[str, frozenset[str]] = {
    "s3": _names(
        "AWS_",
        "REGION DEFAULT_REGION ENDPOINT ENDPOINT_URL ENDPOINT_URL_S3 VIRTUAL_HOSTED_STYLE_REQUEST S3_EXPRESS"
        " UNSIGNED_PAYLOAD CHECKSUM_ALGORITHM SKIP_SIGNATURE COPY_IF_NOT_EXISTS CONDITIONAL_PUT DISABLE_TAGGING"
        f" DISABLE_BULK_DELETE REQUEST_PAYER SERVER_SIDE_ENCRYPTION SSE_KMS_KEY_ID SSE_BUCKET_KEY_ENABLED {_CLIENT}",
    ),
    "gs": _names("GOOGLE_", f"BASE_URL SKIP_SIGNATURE {_CLIENT}"),
    "az": _names(
        "AZURE_",
        "STORAGE_ACCOUNT_NAME STORAGE_ENDPOINT ENDPOINT STORAGE_USE_EMULATOR SKIP_SIGNATURE DISABLE_TAGGING"
        f" USE_FABRIC_ENDPOINT {_CLIENT}",
    )
    | {"AZURITE_BLOB_STORAGE_URL"},
}
"""For each scheme, the variables that its client reads and that are no credentials: where the store is, and how."""

CREDENTIALS: Mapping[str, frozenset[str]] = {
    "gs": _names("GOOGLE_", "SERVICE_ACCOUNT SERVICE_ACCOUNT_PATH APPLICATION_CREDENTIALS")
    | _names("GCE_METADATA_", "HOST ROOT IP")
    | {"SERVICE_ACCOUNT", "CLOUDSDK_CONFIG"},
    "az": _names("AZURE_STORAGE_", "CLIENT_ID TENANT_ID AUTHORITY_ID AUTHORITY_HOST")
    | _names("AZURE_", "CLIENT_ID TENANT_ID AUTHORITY_ID AUTHORITY_HOST FEDERATED_TOKEN_FILE CREDENTIAL_TYPE")
    | _names("AZURE_", "MSI_ENDPOINT IDENTITY_ENDPOINT OBJECT_ID MSI_RESOURCE_ID USE_AZURE_CLI")
    | _names("AZURE_FABRIC_", "TOKEN_SERVICE_URL WORKLOAD_HOST CLUSTER_IDENTIFIER")
    | {"AZURE_CONFIG_DIR", "IDENTITY_ENDPOINT"},
}
"""Those that say where its credentials come from: names of files, of accounts and of metadata servers."""

SECRETS: Mapping[str, frozenset[str]] = {
    "s3": _names("AWS_", "SSE_CUSTOMER_KEY_BASE64"),
    "gs": _names("GOOGLE_", "SERVICE_ACCOUNT_KEY BEARER_TOKEN"),
    "az": _names("AZURE_STORAGE_", "ACCOUNT_KEY ACCESS_KEY MASTER_KEY SAS_KEY SAS_TOKEN TOKEN CLIENT_SECRET")
    | _names("AZURE_", "CLIENT_SECRET FABRIC_SESSION_TOKEN STORAGE_ENCRYPTION_KEY")
    | {"IDENTITY_HEADER"},
}
"""Those whose value is a secret. The keys of AWS are not among them: they are resolved, and travel as `granted`."""

_KEYS_OF_CONTENT = frozenset({"AWS_SSE_CUSTOMER_KEY_BASE64", "AZURE_STORAGE_ENCRYPTION_KEY"})
"""Secrets that encrypt objects and open no door: an anonymous reader needs them too."""

_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "IDENTITY_", "MSI_")

_PROCESS = os.urandom(8).hex()
_opening = threading.Lock()
_taken_over: dict[str, Mapping[str, str]] = {}
"""What came with the recipes that this process has opened, by their scheme."""


class StoreSpec(SelectiveStruct, frozen=True):
    """A store's URL and its credentials, fit to be pickled. Its text has no secret: it may be logged."""

    unshown: ClassVar[tuple[str, ...]] = ("environ", "granted", "made_by")

    url: str
    namespace: str | None
    options: Mapping[str, str]
    concurrency: int
    environ: Mapping[str, str]
    granted: credentials.StaticCredentials | None = None
    made_by: str = ""

    @classmethod
    def of(cls, url: str, namespace: str | None, options: Mapping[str, str], concurrency: int = 64) -> StoreSpec:
        """Take down how to open a store; `CredentialsMissing` and its like where nobody could."""
        scheme = parse_url(url).scheme
        anonymous = options.get("skip_signature", "").lower() == "true"
        granted = None
        if scheme == "s3" and not anonymous:
            provider = credentials.aws(options)
            granted = credentials.StaticCredentials(
                *credentials.aws_keys(provider), provider.region if provider else None
            )
        environ = _needed(scheme, anonymous=anonymous)
        return cls(url, namespace, dict(options), concurrency, environ, granted, _this_process())

    @property
    def secret(self) -> bool:
        """Whether it holds a secret, and not only the name of something that each machine has for itself."""
        return self.granted is not None or any(name in names for names in SECRETS.values() for name in self.environ)

    def open(self) -> Store:
        """Open the store with what the recipe brought, and with no credentials that this process had before.

        The process that made the recipe has it all in its own environment, which stays as it is.
        """
        if self.made_by == _this_process():
            return self._open()
        with _environment(parse_url(self.url).scheme, self.environ), credentials.given(self.granted):
            return self._open()

    def _open(self) -> Store:
        return open_store(self.url, namespace=self.namespace, options=self.options, concurrency=self.concurrency)


def _needed(scheme: str, *, anonymous: bool) -> dict[str, str]:
    """Return the variables of this process that the client of a scheme reads; a proxy's password is not the store's."""
    names = SETTINGS.get(scheme, frozenset()) | (SECRETS.get(scheme, frozenset()) & _KEYS_OF_CONTENT)
    if not anonymous:
        names |= CREDENTIALS.get(scheme, frozenset()) | SECRETS.get(scheme, frozenset())
    found = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    return {name: value for name, value in found.items() if not (name.endswith("_PROXY_URL") and "@" in value)}


@contextmanager
def _environment(scheme: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Give this process the variables of a recipe, while no other is being opened; they stay.

    A client is made when it is first used, and reads them then. So each scheme has the variables of its own recipes,
    which do not differ: all recipes of a worker come from one caller, and AWS keys are not among them. What the process
    had before, or had for another recipe of this scheme, goes.
    """
    with _opening:
        _taken_over[scheme] = environ
        wanted = {name: value for taken in _taken_over.values() for name, value in taken.items()}
        for name in [name for name in os.environ if name.startswith(_PROVIDERS) or name == "SERVICE_ACCOUNT"]:
            if name not in wanted:
                del os.environ[name]
        # Only what differs: threads of a client that is open already may be reading.
        os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})
        yield


def _this_process() -> str:
    return f"{_PROCESS}-{os.getpid()}"
