"""Store URLs and their options, checked before anything is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from bayou.errors import ConfigInvalid, CredentialInConfig
from bayou.quick import dataclass

OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({"region", "endpoint", "profile", "virtual_hosted_style_request", "skip_signature", "request_payer"}
                    | {"server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "disable_bulk_delete"}),
    "gs": frozenset({"endpoint", "skip_signature"}),
    "az": frozenset({"account", "endpoint", "use_emulator", "use_azure_cli", "skip_signature"}),
    "file": frozenset(),
    "memory": frozenset(),
}  # fmt: skip

_SWITCHES = frozenset({"virtual_hosted_style_request", "skip_signature", "request_payer", "sse_bucket_key_enabled"}
                      | {"disable_bulk_delete", "use_emulator", "use_azure_cli"})  # fmt: skip
_FREE_TEXT = frozenset({"profile"})

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BUCKET = re.compile(r"\$?[A-Za-z0-9][A-Za-z0-9._-]*")
_PRINTABLE = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_CREDENTIAL = re.compile(
    r"(?i)secret|password|passwd|credential|private|bearer|session_?token|(^|_)token|(^|_)sas|access_?key|account_?key"
    r"|api_?key|service_account|client_id"
)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed URL: `bucket` is a bucket, a container, a directory (absolute), or a name for `memory`."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return Path(self.bucket).as_uri()
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse_url(text: str) -> StoreUrl:
    """Read a store's URL; `ConfigInvalid` says what is wrong with it, `CredentialInConfig` refuses a secret."""
    parts = _split(text)
    if parts is None or not parts.scheme or "://" not in text or _CONTROL.search(text):
        raise ConfigInvalid(
            f"not a store's URL{_shown(text)}", hint="like s3://bucket/prefix, gs://…, az://… or file:///path"
        )
    if "@" in parts.netloc or (":" in parts.netloc and "@" in parts.path):  # a secret may hold a /
        raise CredentialInConfig(
            f"the {parts.scheme}:// URL of the store holds a credential",
            hint="leave it out; credentials come from the provider's own environment or files",
        )
    if parts.query or parts.fragment:
        raise ConfigInvalid("a store's URL has no ? and no #", hint="options go to --option k=v or [datastore.options]")
    if parts.scheme == "file":
        return StoreUrl("file", _directory(parts, text), "")
    if not parts.netloc:
        raise ConfigInvalid(f"no bucket in the URL{_shown(text)}", hint=f"like {parts.scheme}://bucket/prefix")
    if parts.scheme in OPTIONS and not _BUCKET.fullmatch(parts.netloc):
        raise ConfigInvalid(
            f"{parts.netloc!r} is not the name of a bucket",
            hint=f"like {parts.scheme}://bucket/prefix; a server's address goes to --option endpoint=http://host:port",
        )
    return StoreUrl(parts.scheme, parts.netloc, parts.path.strip("/"))


def _split(text: str) -> SplitResult | None:
    try:
        return urlsplit(text)
    except ValueError:  # brackets that are no IPv6 address, or characters that Unicode makes a / of
        return None


def _shown(text: str) -> str:
    """Return what was typed, for a message; nothing where an @ or a ? says that there may be a secret in it."""
    return f": {text!r}" if set("@?").isdisjoint(text) else ""


def _directory(parts: SplitResult, text: str) -> str:
    """Return the directory of a file URL, byte for byte as it is named there."""
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigInvalid(
            f"a directory's URL has three slashes{_shown(text)}", hint="like file:///mnt/shared/project"
        )
    return os.path.normpath("/" + path.lstrip("/"))


def is_secret(name: str) -> bool:
    """Say whether the name of an option sounds like a credential."""
    return _CREDENTIAL.search(name) is not None


def check_options(scheme: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse credentials, unknown names, and values that make no sense, in a store's options."""
    for name, value in options.items():
        if name in known:
            _check_value(name, value)
            continue
        if is_secret(name):
            raise CredentialInConfig(
                f"{name} is a credential and does not belong into the configuration",
                hint="give it to the provider: its environment variables, profile or login command",
            )
        import difflib  # noqa: PLC0415  (hardly ever needed)

        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
        raise ConfigInvalid(f"unknown option {name} for a {scheme}:// store", hint=hint)


def _check_value(name: str, value: str) -> None:
    if name in _SWITCHES and value.lower() not in ("true", "false"):
        raise ConfigInvalid(f"option {name} is neither true nor false: {value!r}", hint=f"like {name}=true")
    if name == "endpoint":
        _check_endpoint(value)
    elif name not in _FREE_TEXT and not _PRINTABLE.fullmatch(value):
        raise ConfigInvalid(f"option {name} is empty, or has a character that cannot be in one: {value!r}")


def _check_endpoint(value: str) -> None:
    """Refuse what is no address, before the client library meets it: it panics. The text may hold a password."""
    parts = _split(value)
    if parts is not None and ("@" in parts.netloc or parts.query):
        raise CredentialInConfig(
            "option endpoint holds a credential",
            hint="leave it out; credentials come from the provider's own environment or files",
        )
    if parts is None or not _PRINTABLE.fullmatch(value) or not _ADDRESS.fullmatch(f"{parts.scheme}://{parts.netloc}"):
        raise ConfigInvalid(
            "option endpoint is not the address of a server", hint="like endpoint=https://storage.example.com"
        )
