"""Store URLs and their options, checked before anything is opened."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bayou.errors import ConfigInvalid, CredentialInConfig

OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({"region", "endpoint", "profile", "virtual_hosted_style_request", "skip_signature", "request_payer"}
                    | {"server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "disable_bulk_delete"}),
    "gs": frozenset({"endpoint", "skip_signature"}),
    "az": frozenset({"account", "endpoint", "use_emulator", "use_azure_cli", "skip_signature"}),
    "file": frozenset(),
    "memory": frozenset(),
}  # fmt: skip

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
    parts = urlsplit(text)
    if not parts.scheme or "://" not in text:
        raise ConfigInvalid(
            f"not a store's URL: {text!r}", hint="like s3://bucket/prefix, gs://…, az://… or file:///path"
        )
    if parts.username or parts.password:
        raise CredentialInConfig(
            f"the URL of {parts.scheme}://{parts.hostname} holds a credential",
            hint="leave it out; credentials come from the provider's own environment or files",
        )
    if parts.query or parts.fragment:
        raise ConfigInvalid("a store's URL has no ? and no #", hint="options go to --option k=v or [datastore.options]")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigInvalid(
                f"a directory's URL has three slashes: {text!r}", hint="like file:///mnt/shared/project"
            )
        return StoreUrl("file", os.path.normpath(unquote(parts.path)), "")
    if not parts.netloc:
        raise ConfigInvalid(f"no bucket in {text!r}", hint=f"like {parts.scheme}://bucket/prefix")
    return StoreUrl(parts.scheme, parts.netloc, parts.path.strip("/"))


def check_options(scheme: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse credentials and unknown names in a store's options."""
    for name in options:
        if name in known:
            continue
        if _CREDENTIAL.search(name):
            raise CredentialInConfig(
                f"{name} is a credential and does not belong into the configuration",
                hint="give it to the provider: its environment variables, profile or login command",
            )
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
        raise ConfigInvalid(f"unknown option {name} for a {scheme}:// store", hint=hint)
