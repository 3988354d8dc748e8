"""From a URL to a store.

Built in: `s3 gs az file memory`. Others by entry point: group `bayou.stores`, name the URL's scheme, value a function
`(StoreUrl, options) -> Transport`; scope, retries, deadlines and counting are put around it here, so a plug-in cannot
forget them. `bayou_testing.contract` proves such a transport good.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayou.core.errors import ConfigInvalid
from bayou.objectstore.backends import credentials, obstore_errors
from bayou.objectstore.backends.obstore import RemoteTransport
from bayou.objectstore.backends.obstore_errors import one_line
from bayou.objectstore.keys import INTERNAL, KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta, Transport
from bayou.objectstore.url import OPTIONS, StoreUrl, check_options, parse_url

if TYPE_CHECKING:
    from obstore.store import MemoryStore

_S3_BULK = 1000
_AZURE_BULK = 256

_memories: dict[str, MemoryStore] = {}

Factory = Callable[[StoreUrl, Mapping[str, str]], Transport]


def open_store(
    url: str,
    *,
    namespace: str | None = None,
    options: Mapping[str, str] | None = None,
    concurrency: int = 64,
    policy: RetryPolicy | None = None,
) -> Store:
    """Open the store that a URL names. No request is sent; what can be wrong without one is raised here."""
    place = parse_url(url)
    scope = KeyScope.of(place.prefix, namespace)
    return Store(open_transport(place, options or {}), scope, concurrency=concurrency, policy=policy)


def open_directory(root: Path) -> Store:
    """Open what Bayou keeps beside the payload of a directory that is used as it is; nothing appears but `.bayou/`."""
    from bayou.objectstore.backends.directory import LocalTransport  # noqa: PLC0415

    return Store(LocalTransport(root, locks=root / INTERNAL / "locks"), KeyScope.of("", None))


def open_transport(place: StoreUrl, options: Mapping[str, str]) -> Transport:
    """Open the bucket, container or directory of a URL, unscoped."""
    factory = _BUILT_IN.get(place.scheme)
    if factory is None:
        return _plugged(place.scheme)(place, options)
    check_options(place.scheme, options, OPTIONS[place.scheme])
    return factory(place, options)


def _plugged(scheme: str) -> Factory:
    from importlib.metadata import entry_points  # noqa: PLC0415  (20 ms: only for a scheme that is not built in)

    for point in entry_points(group="bayou.stores"):
        if point.name == scheme:
            try:
                factory: Factory = point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigInvalid(
                    f"the store for {scheme}:// URLs cannot be loaded from {point.value}: {one_line(str(error))}",
                    hint="install or repair the package that brings it",
                ) from error
            return factory
    raise ConfigInvalid(
        f"no store for {scheme}:// URLs",
        hint=f"known: {', '.join(OPTIONS)}; others plug in by entry point bayou.stores",
    )


def _s3(place: StoreUrl, options: Mapping[str, str]) -> Transport:
    provider = credentials.aws(options)
    config = {name: value for name, value in options.items() if name != "profile"}
    config.setdefault("region", _aws_region(provider))
    endpoint = options.get("endpoint") or _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    if endpoint is not None:
        # Under both names: to obstore a variable of the second name is stronger than an option of the first.
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    hosts = _s3_hosts(place.bucket, config["region"], endpoint)
    transport_url = f"s3://{place.bucket}"

    def connect(timeout: float) -> Any:
        from obstore.store import S3Store  # noqa: PLC0415

        how = obstore_errors.client(timeout, endpoint, hosts)
        return S3Store(place.bucket, config=config, credential_provider=provider, **how)  # type: ignore[arg-type]

    def list_raw(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        from bayou.objectstore.backends import strict_listing  # noqa: PLC0415  (hardly ever needed)

        return strict_listing.s3(place.bucket, transport_url, config, provider)(prefix, after, timeout)

    renewal = credentials.aws_renewal(options.get("profile"))

    return RemoteTransport(
        transport_url,
        connect,
        renewal=renewal,
        list_raw=list_raw,
        delete_batch=1 if config.get("disable_bulk_delete", "").lower() == "true" else _S3_BULK,
        lost_credentials=lambda: provider.failure if provider else None,
        address=endpoint or f"https://s3.{config['region']}.amazonaws.com",
    )


def _s3_hosts(bucket: str, region: str, endpoint: str | None) -> list[str]:
    """Return the host of the requests to a bucket; any bucket's own is below the first of AWS's."""
    if endpoint is not None:
        return [obstore_errors.host_of(endpoint)]
    zone = bucket.removesuffix("--x-s3").rpartition("--")[2]
    return [f"s3.{region}.amazonaws.com", f"s3express-{zone}.{region}.amazonaws.com"]


def _first(*names: str) -> str | None:
    """Return the first of these environment variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def _aws_region(provider: credentials.BotoCredentials | credentials.StaticCredentials | None) -> str:
    named = _first("AWS_REGION", "AWS_DEFAULT_REGION")
    return named or (provider.region if provider else None) or "us-east-1"


def _gs(place: StoreUrl, options: Mapping[str, str]) -> Transport:
    credentials.require_gcs(options)
    if "endpoint" not in options and (base := _first("GOOGLE_BASE_URL")):
        options = {**options, "endpoint": base}
    endpoint = options.get("endpoint") or credentials.gcs_base_url()
    config = {"base_url" if name == "endpoint" else name: value for name, value in options.items()}
    transport_url = f"gs://{place.bucket}"

    def connect(timeout: float) -> Any:
        from obstore.store import GCSStore  # noqa: PLC0415

        own = [obstore_errors.host_of(endpoint)] if endpoint else []
        hosts = [*own, *_GOOGLES, *obstore_errors.hosts_named("GOOGLE_"), *credentials.gce_metadata_hosts()]
        return GCSStore(place.bucket, config=config, **obstore_errors.client(timeout, endpoint, hosts))  # type: ignore[arg-type]

    def list_raw(prefix: str, after: str | None, timeout: float) -> Iterator[list[ObjectMeta]]:
        from bayou.objectstore.backends import strict_listing  # noqa: PLC0415

        return strict_listing.gcs(place.bucket, transport_url, options)(prefix, after, timeout)

    return RemoteTransport(
        transport_url,
        connect,
        renewal=credentials.GCS_RENEWAL,
        list_raw=list_raw,
        address=endpoint or "https://storage.googleapis.com",
    )


_GOOGLES = ("googleapis.com", "accounts.google.com")
_MICROSOFTS = (
    *("blob.core.windows.net", "blob.fabric.microsoft.com", "169.254.169.254"),
    *("login.microsoftonline.com", "login.microsoftonline.us", "login.microsoftonline.de", "login.chinacloudapi.cn"),
)
"""Hosts, and what is below them, that store objects or give out tokens, and that nobody else can answer for."""


def _az(place: StoreUrl, options: Mapping[str, str]) -> Transport:
    credentials.require_azure(options)
    config = {"account_name" if name == "account" else name: value for name, value in options.items()}
    endpoint = options.get("endpoint") or _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

    def connect(timeout: float) -> Any:
        from obstore.store import AzureStore  # noqa: PLC0415

        own = [obstore_errors.host_of(endpoint)] if endpoint else []
        emulator = ["127.0.0.1"] if "use_emulator" in options or "AZURE_STORAGE_USE_EMULATOR" in os.environ else []
        named = obstore_errors.hosts_named("AZURE_", "AZURITE_", "IDENTITY_", "MSI_", "IMDS_")
        how = obstore_errors.client(timeout, endpoint, [*own, *emulator, *_MICROSOFTS, *named])
        return AzureStore(place.bucket, config=config, **how)  # type: ignore[arg-type]

    account = options.get("account") or _first("AZURE_STORAGE_ACCOUNT_NAME")
    return RemoteTransport(
        f"az://{place.bucket}",
        connect,
        renewal=credentials.AZURE_RENEWAL,
        delete_batch=_AZURE_BULK,
        address=endpoint or (f"https://{account}.blob.core.windows.net" if account else None),
    )


def _file(place: StoreUrl, options: Mapping[str, str]) -> Transport:  # noqa: ARG001
    from bayou.objectstore.backends.directory import LocalTransport  # noqa: PLC0415

    return LocalTransport(Path(place.bucket))


def _memory(place: StoreUrl, options: Mapping[str, str]) -> Transport:  # noqa: ARG001
    from obstore.store import MemoryStore  # noqa: PLC0415

    memory = _memories.setdefault(place.bucket, MemoryStore())
    return RemoteTransport(
        f"memory://{place.bucket}", lambda _: memory, renewal=credentials.NO_RENEWAL, delete_batch=_S3_BULK
    )


_BUILT_IN: dict[str, Factory] = {"s3": _s3, "gs": _gs, "az": _az, "file": _file, "memory": _memory}
