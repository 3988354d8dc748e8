"""Store URLs and their options, which Bayou checks before it opens anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from msgspec import Struct

from bayou.core.errors import ConfigInvalid, CredentialInConfig
from bayou.core.text import did_you_mean

OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({"region", "endpoint", "profile", "virtual_hosted_style_request", "skip_signature", "request_payer"}
                    | {"server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "disable_bulk_delete"}
                    | {"unquoted_etags"}),
    "gs": frozenset({"endpoint", "skip_signature"}),
    "az": frozenset({"account", "endpoint", "use_emulator", "use_azure_cli", "skip_signature"}),
    "file": frozenset(),
    "memory": frozenset(),
}  # fmt: skip

_SWITCHES = frozenset({"virtual_hosted_style_request", "skip_signature", "request_payer", "sse_bucket_key_enabled"}
                      | {"disable_bulk_delete", "use_emulator", "use_azure_cli", "unquoted_etags"})  # fmt: skip

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BUCKET = re.compile(r"\$?[A-Za-z0-9][A-Za-z0-9._-]*")
_PRINTABLE = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_MAX_PORT = 65535
_VALUES = {
    # V23: a region or an account becomes part of a host name, so it must not be able to end that name.
    "region": re.compile(r"[A-Za-z0-9_-]{1,63}"),
    "account": re.compile(r"[A-Za-z0-9-]{1,63}"),
    # A hint shows the profile in a command that users copy into their shell.
    "profile": re.compile(r"[\w.@+:/=, -]{1,128}"),
}
"""The characters of some options' values; all others are printable."""
_EXAMPLES = {"region": "eu-west-1", "account": "ourteam", "profile": "team"}

_HOST = r"(?:[a-z0-9-]+\.)*"
_OWN_HOSTS = {
    "s3": re.compile(rf"{_HOST}s3(?:-fips)?(?:\.dualstack)?(?:\.[a-z0-9-]+)?\.amazonaws\.com(?:\.cn)?"),
    "gs": re.compile(rf"{_HOST}storage\.googleapis\.com|storage\.[a-z0-9-]+\.rep\.googleapis\.com"),
    "az": re.compile(
        r"[a-z0-9-]+\.(?:blob|dfs)\.(?:core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|fabric\.microsoft\.com)"
    ),
}
"""Hosts that belong to the provider itself; customers can get other names below amazonaws.com."""

EMULATOR = "http://127.0.0.1:10000"
"""Where Azurite listens, unless a variable says otherwise."""

_BROKEN_URL = re.compile(r"[a-z][a-z0-9+.-]+:(?!//)|(?i:s3|gs|az|file|memory|https?):(?!//)")
_USER_AND_SECRET = re.compile(r"(?://)?[^/:@]*:.*@", re.DOTALL)
_SERVER = re.compile(r"[\w.-]+(:\d{1,5})?")
"""A host that a message may show: anything but a port after the colon may be a password."""
_CREDENTIAL = re.compile(
    r"(?i)secret|password|passwd|credential|private|bearer|session_?token|(^|_)token|(^|_)sas|access_?key|account_?key"
    r"|api_?key|service_account|client_id"
)


class StoreUrl(Struct, frozen=True):
    """A parsed URL: `bucket` is a bucket, a container, a directory (absolute), or a name for `memory`."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return Path(self.bucket).as_uri()
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse_url(text: str) -> StoreUrl:
    """Parse a store's URL; raise `ConfigInvalid` if it is wrong, and `CredentialInConfig` if it holds a secret."""
    parts = _split(text)
    if parts is None or not parts.scheme or "://" not in text or _CONTROL.search(text) or text != text.strip():
        raise ConfigInvalid(
            f"not a store's URL{_shown(text)}", hint="like s3://bucket/prefix, gs://…, az://… or file:///path"
        )
    if "@" in parts.netloc or (":" in parts.netloc and "@" in parts.path):  # a secret may contain a /
        raise CredentialInConfig(
            f"the {parts.scheme}:// URL of the store holds a credential",
            hint="leave it out; credentials come from the provider's own environment or files",
        )
    if not {"?", "#"}.isdisjoint(text):
        raise ConfigInvalid("a store's URL has no ? and no #", hint="options go to --option k=v or [datastore.options]")
    if parts.scheme == "file":
        return StoreUrl("file", _directory(parts, text), "")
    if not parts.netloc:
        raise ConfigInvalid(f"no bucket in the URL{_shown(text)}", hint=f"like {parts.scheme}://bucket/prefix")
    if parts.scheme in OPTIONS and not _BUCKET.fullmatch(parts.netloc):
        raise ConfigInvalid(
            f"{repr(parts.netloc) if _SERVER.fullmatch(parts.netloc) else 'this'} is not the name of a bucket",
            hint=f"like {parts.scheme}://bucket/prefix; a server's address goes to --option endpoint=http://host:port",
        )
    return StoreUrl(parts.scheme, parts.netloc, parts.path.strip("/"))


def _split(text: str) -> SplitResult | None:
    try:
        return urlsplit(text)
    except ValueError:  # brackets without an IPv6 address, or characters that Unicode normalises to a /
        return None


def _shown(text: str) -> str:
    """Return the text for a message, or nothing if its form suggests that it contains a secret."""
    return f": {text!r}" if set("@?#=&").isdisjoint(text) and text.count(":") <= 1 else ""


def refuse_broken_url(text: str) -> None:
    """Refuse a directory's name that looks like a URL without its slashes, or contains a credential like a URL."""
    if _USER_AND_SECRET.match(text):
        raise CredentialInConfig(
            "this holds a credential, as user:secret@host does",
            hint="leave it out: s3://bucket/prefix; a directory of such a name is ./name",
        )
    if _BROKEN_URL.match(text):
        raise ConfigInvalid(f"not a store's URL{_shown(text)}", hint="like s3://bucket/prefix; a directory like ./name")


def _directory(parts: SplitResult, text: str) -> str:
    """Return the directory of a file URL, byte for byte."""
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigInvalid(
            f"a directory's URL has three slashes{_shown(text)}", hint="like file:///mnt/shared/project"
        )
    return os.path.normpath("/" + path.lstrip("/"))


def is_secret(name: str) -> bool:
    """Return whether the name of an option sounds like a credential."""
    return _CREDENTIAL.search(name) is not None


def check_options(scheme: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse credentials, unknown names and invalid values in a store's options."""
    for name, value in options.items():
        if name in known:
            _check_value(name, value)
            continue
        if is_secret(name):
            raise CredentialInConfig(
                f"{name} is a credential and does not belong into the configuration",
                hint="give it to the provider: its environment variables, profile or login command",
            )
        hint = did_you_mean(name, known, f"known: {', '.join(sorted(known)) or 'none'}")
        raise ConfigInvalid(f"unknown option {name} for a {scheme}:// store", hint=hint)


class CustomEndpoint(NamedTuple):
    """A server that options name instead of the provider's own; `clear_text`: the requests are not encrypted."""

    address: str
    clear_text: bool


def custom_endpoint(scheme: str, options: Mapping[str, str]) -> CustomEndpoint | None:
    """Return the server to which a store's options send requests and credentials; None: the provider itself.

    The options have passed `check_options`. Addresses in the environment are this user's own and do not count.
    """
    if scheme == "az" and options.get("use_emulator", "").lower() == "true":
        return CustomEndpoint(EMULATOR, clear_text=True)
    address = options.get("endpoint")
    own = _OWN_HOSTS.get(scheme)
    if address is None or own is None:
        return None
    return None if is_own_host(scheme, address) else CustomEndpoint(address, is_clear_text(address))


def is_own_host(scheme: str, address: str) -> bool:
    """Return whether an address is the provider's own server, over TLS."""
    parts, own = _split(address), _OWN_HOSTS.get(scheme)
    if parts is None or own is None or is_clear_text(address) or parts.port not in (None, 443):
        return False
    return own.fullmatch((parts.hostname or "").lower()) is not None


def is_clear_text(address: str) -> bool:
    """Return whether a server's address is without TLS."""
    return address.lower().startswith("http://")


def _check_value(name: str, value: str) -> None:
    if name in _SWITCHES and value.lower() not in ("true", "false"):
        raise ConfigInvalid(f"option {name} is neither true nor false", hint=f"like {name}=true")
    if name == "endpoint":
        _check_endpoint(value)
    elif not _VALUES.get(name, _PRINTABLE).fullmatch(value):
        # The message omits the value, which may be a misplaced credential.
        raise ConfigInvalid(
            f"option {name} is empty, too long, or has a character that cannot be in one",
            hint=f"like {name}={_EXAMPLES.get(name, '…')}",
        )


def _check_endpoint(value: str) -> None:
    """Refuse an invalid address, at which the client library would panic. The text may contain a password."""
    parts = _split(value)
    if parts is not None and ("@" in parts.netloc or parts.query):
        raise CredentialInConfig(
            "option endpoint holds a credential",
            hint="leave it out; credentials come from the provider's own environment or files",
        )
    if parts is None or not _PRINTABLE.fullmatch(value) or parts.fragment or not _is_address(parts):
        raise ConfigInvalid(
            "option endpoint is not the address of a server", hint="like endpoint=https://storage.example.com"
        )


def _is_address(parts: SplitResult) -> bool:
    found = _ADDRESS.fullmatch(f"{parts.scheme}://{parts.netloc}")
    return found is not None and int((found[2] or ":1")[1:]) in range(1, _MAX_PORT + 1)
