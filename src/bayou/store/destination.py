"""Where the requests of an obstore client may go: to the store's own host, over TLS unless its address says otherwise.

obstore follows redirects, and there is no option against it. Across hosts it drops the header `Authorization`, but
neither the token of an AWS session nor what stands in the body of a request (Azure's bulk delete). So whatever is not
meant for a host of the store, or for those of its provider that give out tokens, is sent to a proxy that cannot exist,
and fails there (V26). What this user's own environment says of hosts and proxies holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from bayou.store.url import is_clear_text

NOWHERE = "0.0.0.0:0"
"""The proxy. Nobody can listen on port 0, and connecting to it fails at once."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_PROVIDERS_PROXIES = ("AWS_PROXY_URL", "GOOGLE_PROXY_URL", "AZURE_PROXY_URL")


def client(timeout: float, endpoint: str | None, hosts: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of a client: bounded in time, no retries of its own, and no other host than these.

    `endpoint` is an address that the user named, or None. (`Store` makes retries, and counts them.)
    """
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(5.0, timeout)),
        "allow_http": endpoint is not None and is_clear_text(endpoint),
        "user_agent": "bayou",
    }
    if not proxied():
        options |= {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(sorted({*hosts} - {""}))}
    return {"client_options": options, "retry_config": {"max_retries": 0}}


def host_of(address: str) -> str:
    """Return the host of an address, as it stands in a list of those that need no proxy; empty if it has none."""
    try:
        host = (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""  # obstore says what is wrong with it, if it needs it
    return _dotted(host) if host.rpartition(".")[2][:1].isdigit() else host


def _dotted(host: str) -> str:
    """Return a number of IPv4 as obstore writes it, however it was typed: 127.1 is 127.0.0.1."""
    import socket  # noqa: PLC0415

    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


def hosts_named(*prefixes: str) -> Iterable[str]:
    """Yield the hosts of the addresses in the environment's variables whose names begin like that."""
    for name, value in os.environ.items():
        if name.startswith(prefixes) and value.lower().startswith(("http://", "https://")):
            yield host_of(value)


def proxied() -> bool:
    """Say whether this user's environment names a proxy, so that requests go where it says."""
    if any(os.environ.get(name) for name in _PROVIDERS_PROXIES):
        return True
    named = any(os.environ.get(name) for name in (*_PROXIES, *map(str.upper, _PROXIES)))
    return named and "*" not in (os.environ.get("NO_PROXY"), os.environ.get("no_proxy"))
