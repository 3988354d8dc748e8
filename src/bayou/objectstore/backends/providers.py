"""The transports of the built-in schemes: how obstore's clients are configured for S3, GCS, Azure and memory.

A client sends requests only to the store's own host, and over TLS unless the user's address says otherwise. obstore
follows redirects and has no option against it; across hosts it drops the header `Authorization`, but neither the token
of an AWS session nor the body of a request (Azure's bulk delete). So a client sends every request for a host that is
neither the store's nor one of its provider's token services to a proxy that cannot exist, where it fails (V26). Hosts
and proxies that this user's own environment names remain valid.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bayou.core.errors import ConfigInvalid
from bayou.objectstore.backends import credentials
from bayou.objectstore.backends.obstore import RemoteTransport
from bayou.objectstore.backends.obstore_errors import NOWHERE
from bayou.objectstore.transport import ObjectMeta, PartTransport, Transport
from bayou.objectstore.url import StoreUrl, is_clear_text, is_own_host

if TYPE_CHECKING:
    from obstore.store import MemoryStore

_S3_BULK = 1000
_AZURE_BULK = 256
_GOOGLE_HOSTS = ("googleapis.com", "accounts.google.com")
_MICROSOFT_HOSTS = (
    *("blob.core.windows.net", "blob.fabric.microsoft.com", "169.254.169.254"),
    *("login.microsoftonline.com", "login.microsoftonline.us", "login.microsoftonline.de", "login.chinacloudapi.cn"),
)
"""Hosts (and all below them) that store objects or issue tokens, and that only the provider controls."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_PROVIDER_PROXIES = ("AWS_PROXY_URL", "GOOGLE_PROXY_URL", "AZURE_PROXY_URL")

_memories: dict[str, MemoryStore] = {}


def s3_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:
    """Make the transport of an S3 bucket."""
    provider = credentials.aws(options)
    config = {name: value for name, value in options.items() if name not in ("profile", "unquoted_etags")}
    config.setdefault("region", _aws_region(provider))
    endpoint = options.get("endpoint") or _first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    if endpoint is not None:
        # Set both names: in obstore a variable of the second name overrides an option of the first.
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    hosts = _s3_hosts(url.bucket, config["region"], endpoint)
    transport_url = f"s3://{url.bucket}"

    def connect(timeout: float) -> Any:
        from obstore.store import S3Store  # noqa: PLC0415

        arguments = client_arguments(timeout, endpoint, hosts, authorities("AWS_CA_BUNDLE"))
        return S3Store(url.bucket, config=config, credential_provider=provider, **arguments)  # type: ignore[arg-type]

    def list_raw(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        from bayou.objectstore.backends import strict_listing  # noqa: PLC0415  (rarely needed)

        return strict_listing.s3(url.bucket, transport_url, config, provider)(prefix, after, timeout)

    renewal = credentials.aws_renewal(options.get("profile"))

    def parts() -> PartTransport | None:
        from bayou.objectstore.backends.boto_parts import s3_parts  # noqa: PLC0415  (boto3: only for a large file)

        return s3_parts(url.bucket, config, endpoint, provider, renewal)

    return RemoteTransport(
        transport_url,
        connect,
        renewal=renewal,
        parts=parts,
        list_raw=list_raw,
        delete_batch=1 if config.get("disable_bulk_delete", "").lower() == "true" else _S3_BULK,
        lost_credentials=lambda: provider.failure if provider else None,
        address=endpoint or f"https://s3.{config['region']}.amazonaws.com",
        unquoted=_unquoted(options, endpoint),
    )


def _unquoted(options: Mapping[str, str], endpoint: str | None) -> bool | None:
    """Return the form of ETags in conditions, for `SupportsUnquotedMatch`; AWS wants them with quotes."""
    if "unquoted_etags" in options:
        return True if options["unquoted_etags"].lower() == "true" else None
    return None if endpoint is None or is_own_host("s3", endpoint) else False


def authorities(variable: str) -> bytes | None:
    """Return the certificates of the authorities in the file that a variable of the environment names, if it is set."""
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigInvalid(
            f"cannot read {variable}, {path}: {error.strerror}", hint="it is a file of certificates in PEM form"
        ) from None


def _s3_hosts(bucket: str, region: str, endpoint: str | None) -> list[str]:
    """Return the hosts of the requests to a bucket; a bucket's own host name lies below AWS's first."""
    if endpoint is not None:
        return [host_of(endpoint)]
    zone = bucket.removesuffix("--x-s3").rpartition("--")[2]
    return [f"s3.{region}.amazonaws.com", f"s3express-{zone}.{region}.amazonaws.com"]


def _first_variable(*names: str) -> str | None:
    """Return the first of these environment variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def _aws_region(provider: credentials.BotoCredentials | credentials.StaticCredentials | None) -> str:
    region = _first_variable("AWS_REGION", "AWS_DEFAULT_REGION")
    return region or (provider.region if provider else None) or "us-east-1"


def gs_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:
    """Make the transport of a Google Cloud Storage bucket."""
    if "endpoint" not in options and (base := _first_variable("GOOGLE_BASE_URL")):
        options = {**options, "endpoint": base}
    endpoint = options.get("endpoint") or credentials.gcs_base_url()
    foreign = endpoint is not None and not is_own_host("gs", endpoint)
    credentials.require_gcs(options, foreign=foreign)
    config = {"base_url" if name == "endpoint" else name: value for name, value in options.items()}
    provider = credentials.NoToken() if options.get("skip_signature", "").lower() == "true" else None
    transport_url = f"gs://{url.bucket}"

    def connect(timeout: float) -> Any:
        from obstore.store import GCSStore  # noqa: PLC0415

        own = [host_of(endpoint)] if endpoint else []
        # V26: the token of a Google machine is for Google.
        machine = () if foreign or provider is not None else credentials.gce_metadata_hosts()
        hosts = [*own, *_GOOGLE_HOSTS, *_hosts_in_variables("GOOGLE_"), *machine]
        arguments = client_arguments(timeout, endpoint, hosts)
        return GCSStore(url.bucket, config=config, credential_provider=provider, **arguments)  # type: ignore[arg-type]

    def list_raw(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        from bayou.objectstore.backends import strict_listing  # noqa: PLC0415

        return strict_listing.gcs(url.bucket, transport_url, options)(prefix, after, timeout)

    def parts() -> PartTransport | None:
        from bayou.objectstore.backends.boto_parts import google_parts  # noqa: PLC0415

        return google_parts(url.bucket, options, credentials.GCS_RENEWAL)

    return RemoteTransport(
        transport_url,
        connect,
        parts=parts,
        renewal=credentials.GCS_RENEWAL,
        list_raw=list_raw,
        address=endpoint or "https://storage.googleapis.com",
    )


def az_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:
    """Make the transport of an Azure container."""
    credentials.require_azure(options)
    config = {"account_name" if name == "account" else name: value for name, value in options.items()}
    endpoint = options.get("endpoint") or _first_variable("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

    def connect(timeout: float) -> Any:
        from obstore.store import AzureStore  # noqa: PLC0415

        own = [host_of(endpoint)] if endpoint else []
        emulator = ["127.0.0.1"] if "use_emulator" in options or "AZURE_STORAGE_USE_EMULATOR" in os.environ else []
        named = _hosts_in_variables("AZURE_", "AZURITE_", "IDENTITY_", "MSI_", "IMDS_")
        arguments = client_arguments(timeout, endpoint, [*own, *emulator, *_MICROSOFT_HOSTS, *named])
        return AzureStore(url.bucket, config=config, **arguments)  # type: ignore[arg-type]

    def parts() -> PartTransport | None:
        from bayou.objectstore.backends.azure_parts import azure_parts  # noqa: PLC0415

        return azure_parts(url.bucket, options, credentials.AZURE_RENEWAL)

    account = options.get("account") or _first_variable("AZURE_STORAGE_ACCOUNT_NAME")
    return RemoteTransport(
        f"az://{url.bucket}",
        connect,
        parts=parts,
        renewal=credentials.AZURE_RENEWAL,
        delete_batch=_AZURE_BULK,
        address=endpoint or (f"https://{account}.blob.core.windows.net" if account else None),
    )


def file_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:  # noqa: ARG001
    """Make the transport of a shared directory."""
    from bayou.objectstore.backends.directory import LocalTransport  # noqa: PLC0415

    return LocalTransport(Path(url.bucket))


def memory_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:  # noqa: ARG001
    """Make the transport of a store in this process's memory, for tests; a name has one store per process."""
    from obstore.store import MemoryStore  # noqa: PLC0415

    memory = _memories.setdefault(url.bucket, MemoryStore())
    return RemoteTransport(
        f"memory://{url.bucket}", lambda _: memory, renewal=credentials.NO_RENEWAL, delete_batch=_S3_BULK
    )


def client_arguments(
    timeout: float, endpoint: str | None, hosts: Iterable[str], roots: bytes | None = None
) -> dict[str, Any]:
    """Return the arguments of an obstore client: limited in time, without retries, and only for these hosts.

    `endpoint` is an address that the user named, or None; `roots` are certificates to trust beside the system's.
    `Store` retries requests, and counts them.
    """
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(5.0, timeout)),
        "allow_http": endpoint is not None and is_clear_text(endpoint),
        "user_agent": "bayou",
    }
    if roots is not None:
        options["root_certificate"] = roots
    if not _has_proxy():
        options |= {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(sorted({*hosts} - {""}))}
    return {"client_options": options, "retry_config": {"max_retries": 0}}


def host_of(address: str) -> str:
    """Return the host of an address as a list of proxy exclusions has it, or an empty text if there is none."""
    try:
        host = (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""  # obstore reports the address if it uses it
    return _dotted(host) if host.rpartition(".")[2][:1].isdigit() else host


def _dotted(host: str) -> str:
    """Return an IPv4 address as obstore writes it: 127.1 is 127.0.0.1."""
    import socket  # noqa: PLC0415

    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


def _hosts_in_variables(*prefixes: str) -> Iterable[str]:
    """Yield the hosts of the addresses in environment variables whose names have one of these prefixes."""
    for name, value in os.environ.items():
        if name.startswith(prefixes) and value.lower().startswith(("http://", "https://")):
            yield host_of(value)


def _has_proxy() -> bool:
    """Return whether this user's environment names a proxy for the requests."""
    if any(os.environ.get(name) for name in _PROVIDER_PROXIES):
        return True
    named = any(os.environ.get(name) for name in (*_PROXIES, *map(str.upper, _PROXIES)))
    return named and "*" not in (os.environ.get("NO_PROXY"), os.environ.get("no_proxy"))
