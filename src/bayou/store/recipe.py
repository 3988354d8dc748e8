"""How another process opens this store: a worker of Spark has neither our environment nor our login."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from bayou.quick import dataclass
from bayou.store import credentials
from bayou.store.open import open_store
from bayou.store.store import Store
from bayou.store.url import parse_url

_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_", "IDENTITY_", "MSI_")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A store's place and the caller's credentials, fit to be pickled. Its text has no secret: it may be logged.

    AWS credentials are resolved when it is made, since profiles and logins are of this machine; those of Google and
    Azure are what the environment names. That environment is the same for all stores of one caller, so that a process
    can open several; resolved credentials belong to one store.
    """

    url: str
    namespace: str | None
    options: Mapping[str, str]
    concurrency: int
    environ: Mapping[str, str] = field(repr=False)
    granted: credentials.Granted | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, namespace: str | None, options: Mapping[str, str], concurrency: int = 64) -> Recipe:
        """Take down how to open a store; `CredentialsMissing` and its like where nobody could."""
        environ = {name: value for name, value in os.environ.items() if name.startswith(_PROVIDERS)}
        provider = credentials.aws(options) if parse_url(url).scheme == "s3" else None
        if provider is None:
            return cls(url, namespace, dict(options), concurrency, environ)
        granted = credentials.Granted(*credentials.aws_keys(provider), provider.region)
        return cls(url, namespace, dict(options), concurrency, environ, granted)

    def open(self) -> Store:
        """Open the store in a process that has no provider's environment of its own."""
        for name in [name for name in os.environ if name.startswith(_PROVIDERS)]:
            del os.environ[name]
        os.environ.update(self.environ)
        if self.granted is not None:
            credentials.grant(self.options.get("profile"), self.granted)
        return open_store(self.url, namespace=self.namespace, options=self.options, concurrency=self.concurrency)
