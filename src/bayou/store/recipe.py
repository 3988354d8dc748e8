"""How another process opens this store: a worker of Spark has neither our environment nor our login."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from bayou.store import credentials
from bayou.store.open import open_store
from bayou.store.store import Store
from bayou.store.url import parse_url

_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "IDENTITY_", "MSI_")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_CHAIN = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A store's place and the caller's credentials, fit to be pickled. Its text has no secret: it may be logged.

    AWS credentials are resolved when it is made, since profiles and logins are of this machine; those of Google and
    Azure are what the environment names.
    """

    url: str
    namespace: str | None
    options: Mapping[str, str]
    concurrency: int
    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str, namespace: str | None, options: Mapping[str, str], concurrency: int = 64) -> Recipe:
        """Take down how to open a store; `CredentialsMissing` and its like where nobody could."""
        environ = {name: value for name, value in os.environ.items() if name.startswith(_PROVIDERS)}
        kept = dict(options)
        provider = credentials.aws(options) if parse_url(url).scheme == "s3" else None
        if provider is not None:
            fresh = provider.fetch()
            found = (fresh["access_key_id"], fresh["secret_access_key"], fresh.get("token"))
            environ = {name: value for name, value in environ.items() if name not in (*_KEYS, *_CHAIN)}
            environ |= {name: value for name, value in zip(_KEYS, found, strict=True) if value}
            kept.pop("profile", None)
            if provider.region:
                environ.setdefault("AWS_REGION", provider.region)
        return cls(url, namespace, kept, concurrency, environ)

    def open(self) -> Store:
        """Open the store in a process that has no provider's environment of its own."""
        for name in [name for name in os.environ if name.startswith(_PROVIDERS)]:
            del os.environ[name]
        os.environ.update(self.environ)
        return open_store(self.url, namespace=self.namespace, options=self.options, concurrency=self.concurrency)
