"""Open the store that a URL names.

Built-in schemes are `s3 gs az file memory`. A plug-in adds another scheme by an entry point of group `bayou.stores`,
whose name is the scheme and whose value is a function `(StoreUrl, options) -> Transport`. This module wraps the
transport in a `Store` with scope, retries, deadlines and counting, so a plug-in cannot omit them.
`bayou_testing.contract` checks that a transport keeps its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bayou.core.errors import ConfigInvalid
from bayou.objectstore.backends import providers
from bayou.objectstore.backends.obstore_errors import one_line
from bayou.objectstore.keys import INTERNAL, KeyScope
from bayou.objectstore.link import Link
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Transport
from bayou.objectstore.url import OPTIONS, StoreUrl, check_options, parse_url

Factory = Callable[[StoreUrl, Mapping[str, str]], Transport]


def open_store(
    url: str,
    *,
    namespace: str | None = None,
    options: Mapping[str, str] | None = None,
    concurrency: int = 64,
    policy: RetryPolicy | None = None,
    limit_rate: float | None = None,
) -> Store:
    """Open the store that a URL names; send no request, but raise every error that needs none.

    `limit_rate` limits the bytes a second that this store and all its views move.
    """
    parsed = parse_url(url)
    scope = KeyScope.of(parsed.prefix, namespace)
    transport = open_transport(parsed, options or {})
    return Store(transport, scope, concurrency=concurrency, policy=policy, link=Link(limit_rate))


def open_directory(root: Path) -> Store:
    """Open a directory datastore as a store; the transport creates nothing in it but `.bayou/`."""
    from bayou.objectstore.backends.directory import LocalTransport  # noqa: PLC0415

    return Store(LocalTransport(root, locks=root / INTERNAL / "locks"), KeyScope.of("", None))


def open_transport(url: StoreUrl, options: Mapping[str, str]) -> Transport:
    """Open the bucket, container or directory of a URL as an unscoped transport."""
    factory = BUILT_IN.get(url.scheme)
    if factory is None:
        return _plug_in(url.scheme)(url, options)
    check_options(url.scheme, options, OPTIONS[url.scheme])
    return factory(url, options)


def _plug_in(scheme: str) -> Factory:
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


BUILT_IN: dict[str, Factory] = {
    "s3": providers.s3_transport,
    "gs": providers.gs_transport,
    "az": providers.az_transport,
    "file": providers.file_transport,
    "memory": providers.memory_transport,
}
