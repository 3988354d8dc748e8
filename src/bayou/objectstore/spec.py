"""How another process opens this store: a Spark worker has neither the environment nor the login of this process.

A `StoreSpec` holds the variables that the client of its own store reads and no others (V26): a directory needs none,
and an S3 bucket none of Google's. The AWS keys are resolved in the process that makes the spec, since a worker does not
have its profiles, roles and containers; they are for one store only. For Google and Azure, a spec holds the variables
that say where credentials come from.
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


def _with_prefix(prefix: str, words: str) -> frozenset[str]:
    return frozenset(prefix + word for word in words.split())


_CLIENT = (
    "ALLOW_INVALID_CERTIFICATES DEFAULT_CONTENT_TYPE HTTP1_ONLY HTTP2_ONLY"
    " PROXY_CA_CERTIFICATE PROXY_EXCLUDES PROXY_URL"
)
"""Variables that every client reads, each with the prefix of its provider."""

SETTINGS: Mapping[str, frozenset[str]] = {
    "s3": _with_prefix(
        "AWS_",
        "REGION DEFAULT_REGION ENDPOINT ENDPOINT_URL ENDPOINT_URL_S3 VIRTUAL_HOSTED_STYLE_REQUEST S3_EXPRESS"
        " UNSIGNED_PAYLOAD CHECKSUM_ALGORITHM SKIP_SIGNATURE COPY_IF_NOT_EXISTS CONDITIONAL_PUT DISABLE_TAGGING"
        " CA_BUNDLE DISABLE_BULK_DELETE REQUEST_PAYER SERVER_SIDE_ENCRYPTION SSE_KMS_KEY_ID SSE_BUCKET_KEY_ENABLED"
        f" {_CLIENT}",
    ),
    "gs": _with_prefix("GOOGLE_", f"BASE_URL SKIP_SIGNATURE {_CLIENT}"),
    "az": _with_prefix(
        "AZURE_",
        "STORAGE_ACCOUNT_NAME STORAGE_ENDPOINT ENDPOINT STORAGE_USE_EMULATOR SKIP_SIGNATURE DISABLE_TAGGING"
        f" USE_FABRIC_ENDPOINT {_CLIENT}",
    )
    | {"AZURITE_BLOB_STORAGE_URL"},
}
"""For each scheme, the variables that its client reads and that are not about credentials."""

CREDENTIALS: Mapping[str, frozenset[str]] = {
    "gs": _with_prefix("GOOGLE_", "SERVICE_ACCOUNT SERVICE_ACCOUNT_PATH APPLICATION_CREDENTIALS")
    | _with_prefix("GCE_METADATA_", "HOST ROOT IP")
    | {"SERVICE_ACCOUNT", "CLOUDSDK_CONFIG"},
    "az": _with_prefix("AZURE_STORAGE_", "CLIENT_ID TENANT_ID AUTHORITY_ID AUTHORITY_HOST")
    | _with_prefix("AZURE_", "CLIENT_ID TENANT_ID AUTHORITY_ID AUTHORITY_HOST FEDERATED_TOKEN_FILE CREDENTIAL_TYPE")
    | _with_prefix("AZURE_", "MSI_ENDPOINT IDENTITY_ENDPOINT OBJECT_ID MSI_RESOURCE_ID USE_AZURE_CLI")
    | _with_prefix("AZURE_FABRIC_", "TOKEN_SERVICE_URL WORKLOAD_HOST CLUSTER_IDENTIFIER")
    | {"AZURE_CONFIG_DIR", "IDENTITY_ENDPOINT"},
}
"""Variables that say where credentials come from: names of files, of accounts and of metadata servers."""

SECRETS: Mapping[str, frozenset[str]] = {
    "s3": _with_prefix("AWS_", "SSE_CUSTOMER_KEY_BASE64"),
    "gs": _with_prefix("GOOGLE_", "SERVICE_ACCOUNT_KEY BEARER_TOKEN"),
    "az": _with_prefix("AZURE_STORAGE_", "ACCOUNT_KEY ACCESS_KEY MASTER_KEY SAS_KEY SAS_TOKEN TOKEN CLIENT_SECRET")
    | _with_prefix("AZURE_", "CLIENT_SECRET FABRIC_SESSION_TOKEN STORAGE_ENCRYPTION_KEY")
    | {"IDENTITY_HEADER"},
}
"""Variables whose value is a secret. AWS keys are not among them: a spec holds the resolved keys as `aws_keys`."""

_KEYS_OF_CONTENT = frozenset({"AWS_SSE_CUSTOMER_KEY_BASE64", "AZURE_STORAGE_ENCRYPTION_KEY"})
"""Secrets that encrypt objects and give no access: an anonymous reader needs them too."""

_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "IDENTITY_", "MSI_")

_PROCESS = os.urandom(8).hex()
_opening = threading.Lock()
_environments: dict[str, Mapping[str, str]] = {}
"""The variables of the specs that this process has opened, by scheme."""


class StoreSpec(SelectiveStruct, frozen=True):
    """A store's URL and its credentials. A spec can be pickled; its repr contains no secret and may be logged."""

    unshown: ClassVar[tuple[str, ...]] = ("environ", "aws_keys", "process")

    url: str
    namespace: str | None
    options: Mapping[str, str]
    concurrency: int
    environ: Mapping[str, str]
    aws_keys: credentials.StaticCredentials | None = None
    process: str = ""

    @classmethod
    def of(cls, url: str, namespace: str | None, options: Mapping[str, str], concurrency: int = 64) -> StoreSpec:
        """Make the spec of a store; raise `CredentialsMissing` or the like if this process has no credentials."""
        scheme = parse_url(url).scheme
        anonymous = options.get("skip_signature", "").lower() == "true"
        aws_keys = None
        if scheme == "s3" and not anonymous:
            provider = credentials.aws(options)
            aws_keys = credentials.StaticCredentials(
                *credentials.aws_keys(provider), provider.region if provider else None
            )
        environ = _client_variables(scheme, anonymous=anonymous)
        return cls(url, namespace, dict(options), concurrency, environ, aws_keys, _this_process())

    @property
    def secret(self) -> bool:
        """Whether the spec holds a secret, and not only names of files and servers that each machine has."""
        return self.aws_keys is not None or any(name in names for names in SECRETS.values() for name in self.environ)

    def open(self) -> Store:
        """Open the store with the variables and keys of this spec, and without earlier credentials of this process.

        The process that made the spec opens the store with its own environment, which stays unchanged.
        """
        if self.process == _this_process():
            return self._open()
        with _environment(parse_url(self.url).scheme, self.environ), credentials.use_static_credentials(self.aws_keys):
            return self._open()

    def _open(self) -> Store:
        return open_store(self.url, namespace=self.namespace, options=self.options, concurrency=self.concurrency)


def _client_variables(scheme: str, *, anonymous: bool) -> dict[str, str]:
    """Return the variables of this process that the client of a scheme reads, without a proxy's password."""
    names = SETTINGS.get(scheme, frozenset()) | (SECRETS.get(scheme, frozenset()) & _KEYS_OF_CONTENT)
    if not anonymous:
        names |= CREDENTIALS.get(scheme, frozenset()) | SECRETS.get(scheme, frozenset())
    found = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    return {name: value for name, value in found.items() if not (name.endswith("_PROXY_URL") and "@" in value)}


@contextmanager
def _environment(scheme: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Replace the providers' variables of this process by those of a spec, for good, while no other spec is opened.

    The variables stay because a client reads them when it is first used. So each scheme has the variables of its last
    spec; all specs of a worker come from one caller and do not differ in them (AWS keys are not variables here).
    Variables that the process had before, or had for another spec of this scheme, are removed.
    """
    with _opening:
        _environments[scheme] = environ
        wanted = {name: value for variables in _environments.values() for name, value in variables.items()}
        for name in [name for name in os.environ if name.startswith(_PROVIDERS) or name == "SERVICE_ACCOUNT"]:
            if name not in wanted:
                del os.environ[name]
        # Set only what differs: threads of a client that is already open may be reading.
        os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})
        yield


def _this_process() -> str:
    return f"{_PROCESS}-{os.getpid()}"
