"""Credentials: they come from the provider's own chain and from nowhere else.

obstore itself reads plain keys from the environment. For AWS profiles, SSO and roles Bayou uses boto3, which it imports
only then. If no source of credentials exists, Bayou reports that at once, instead of waiting for the address of a
metadata server that does not answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bayou.core.errors import BayouError, CannotConnect, ConfigInvalid, CredentialsExpired, CredentialsMissing
from bayou.core.structs import SelectiveStruct
from bayou.objectstore.backends.obstore_errors import Renewal, one_line


def aws_renewal(profile: str | None) -> Renewal:
    profile = profile or os.environ.get("AWS_PROFILE")
    quoted = f"'{profile}'" if profile and " " in profile else profile
    named = f" --profile {quoted}" if profile else ""
    return Renewal(
        missing=f"sign in with: aws sso login{named}, or aws configure{named}, "
        "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        expired=f"renew them with: aws sso login{named}"
        if not os.environ.get("AWS_SESSION_TOKEN")
        else "renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment",
    )


GCS_RENEWAL = Renewal(
    missing="sign in with: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
    expired="renew them with: gcloud auth application-default login",
)

AZURE_RENEWAL = Renewal(
    missing="set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, "
    "or sign in with: az login, and add --option use_azure_cli=true",
    expired="renew them with: az login",
)

NO_RENEWAL = Renewal(missing="", expired="")

PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
"""The machine's name in its firmware, where clouds put theirs."""

BOTO_LIMITS: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 2}}
"""Time limits for AWS's sign-in services (V12); by default boto3 waits for minutes."""


class BotoCredentials:
    """AWS credentials from boto3's chain: profiles, SSO, roles, containers, instances.

    obstore calls the object when it needs fresh credentials. `failure` is the error of the last call, of which obstore
    keeps only the text.
    """

    def __init__(self, profile: str | None) -> None:
        import boto3.session  # noqa: PLC0415  (300 ms: only when there are no plain keys)
        import botocore.config  # noqa: PLC0415
        import botocore.exceptions  # noqa: PLC0415
        import botocore.session  # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415

        self._errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        self._network = (botocore.exceptions.ConnectionError, botocore.exceptions.HTTPClientError)
        self._renewal = aws_renewal(profile)
        self._lock = threading.Lock()
        self.failure: BayouError | None = None
        try:
            core = botocore.session.Session()
            core.set_default_client_config(botocore.config.Config(**BOTO_LIMITS))
            self.session = boto3.session.Session(profile_name=profile, botocore_session=core)
            self._provider = Boto3CredentialProvider(self.session)
        except botocore.exceptions.ProfileNotFound as error:
            raise ConfigInvalid(str(error), hint="name one of: aws configure list-profiles") from None
        except self._errors as error:
            raise self._translate(error) from None
        except ValueError:
            raise CredentialsMissing("no AWS credentials found anywhere", hint=self._renewal.missing) from None

    @property
    def region(self) -> str | None:
        region: str | None = self.session.region_name
        return region

    def __call__(self) -> Any:
        try:
            with self._lock:
                credential = self._provider()
        except self._errors as error:
            self.failure = self._translate(error)
            raise
        self.failure = None
        return credential

    def fetch(self) -> Any:
        """Return credentials for a request that obstore does not send; raise an error of Bayou if there are none."""
        try:
            return self()
        except self._errors as error:
            raise self._translate(error) from None

    def _translate(self, error: Exception) -> BayouError:
        text = one_line(str(error))
        if isinstance(error, self._network):
            return CannotConnect(f"cannot ask AWS for credentials: {text}", hint="check the network, and try again")
        if any(word in text.lower() for word in ("expired", "refresh", "sso", "token")):
            return CredentialsExpired(f"AWS credentials have expired: {text}", hint=self._renewal.expired)
        return CredentialsMissing(f"no AWS credentials: {text}", hint=self._renewal.missing)


class Keys(NamedTuple):
    """AWS credentials for requests that Bayou signs itself. The repr contains no secret."""

    access_key_id: str
    secret_access_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Keys(…)"


class StaticCredentials(SelectiveStruct, frozen=True):
    """AWS credentials that another process resolved for this one, valid until they expire."""

    unshown: ClassVar[tuple[str, ...]] = ("access_key_id", "secret_access_key", "token")

    access_key_id: str
    secret_access_key: str
    token: str | None
    region: str | None
    failure: ClassVar[BayouError | None] = None

    def __call__(self) -> Any:
        keys = {"access_key_id": self.access_key_id, "secret_access_key": self.secret_access_key}
        return {**keys, **({"token": self.token} if self.token else {}), "expires_at": None}

    def fetch(self) -> Any:
        return self()


_static: ContextVar[StaticCredentials | None] = ContextVar("static_credentials", default=None)


@contextmanager
def use_static_credentials(credentials: StaticCredentials | None) -> Iterator[None]:
    """Give these credentials to all stores that this thread opens in the block, whatever profile they name."""
    token = _static.set(credentials)
    try:
        yield
    finally:
        _static.reset(token)


def aws(options: Mapping[str, str]) -> BotoCredentials | StaticCredentials | None:
    """Return a credential provider; None for anonymous access and for plain keys in the environment."""
    if options.get("skip_signature", "").lower() == "true":
        return None
    if (static := _static.get()) is not None:
        return static
    plain = bool(os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"))
    if plain and "profile" not in options:
        return None
    return BotoCredentials(options.get("profile"))


def aws_keys(provider: BotoCredentials | StaticCredentials | None) -> Keys:
    """Return the credentials for the next requests; without a provider, those of the environment."""
    if provider is None:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        key, secret, token = (os.environ.get(name) for name in names)
        if not key or not secret:
            raise CredentialsMissing("no AWS credentials in the environment", hint=aws_renewal(None).missing)
        return Keys(key, secret, token or None)
    fresh = provider.fetch()
    return Keys(fresh["access_key_id"], fresh["secret_access_key"], fresh.get("token"))


class NoToken:
    """Provides obstore with an empty token, for requests without credentials.

    Without it, obstore takes the token of the machine for writes, although `skip_signature` is set.
    """

    def __call__(self) -> Any:
        return {"token": "", "expires_at": None}


def require_gcs(options: Mapping[str, str], *, foreign: bool) -> None:
    """Raise `CredentialsMissing` if there is no source of Google credentials, before a client waits for one.

    V26: the token of a Google machine is no credential for a `foreign` server, and is not asked for.
    """
    keys = (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
    )
    machines = ("GCE_METADATA_HOST", "K_SERVICE", "KUBERNETES_SERVICE_HOST")
    if options.get("skip_signature", "").lower() == "true" or any(name in os.environ for name in keys):
        return
    if adc_file().exists():
        return
    if foreign:
        raise CredentialsMissing(
            "no Google credentials for this endpoint: a machine's own token goes to Google only",
            hint="add --option skip_signature=true to send none, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        )
    if any(name in os.environ for name in machines) or _product_name().startswith("Google"):
        return
    raise CredentialsMissing("no Google credentials found anywhere", hint=GCS_RENEWAL.missing)


def require_azure(options: Mapping[str, str]) -> None:
    """Raise `CredentialsMissing` if there is no source of Azure credentials, before a client waits for one."""
    chosen = any(
        options.get(name, "").lower() == "true" for name in ("skip_signature", "use_emulator", "use_azure_cli")
    )
    names = ("AZURE_STORAGE_", "AZURE_CLIENT_", "AZURE_FEDERATED_", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_MSI_")
    ambient = any(name.startswith(names) and "ACCOUNT_NAME" not in name for name in os.environ)
    if not chosen and not ambient and not _product_name().startswith("Virtual Machine"):
        raise CredentialsMissing("no Azure credentials found anywhere", hint=AZURE_RENEWAL.missing)


def gcs_key() -> dict[str, Any]:
    """Return the key that the environment or gcloud names, or an empty dict; raise `ValueError` for a bad key."""
    import json  # noqa: PLC0415

    if text := os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return _mapping(json.loads(text))
    names = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")
    path = next((Path(os.environ[name]) for name in names if name in os.environ), adc_file())
    try:
        return _mapping(json.loads(path.read_bytes())) if path.exists() else {}
    except OSError as error:
        raise ValueError(str(error)) from None


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a key")
    return value


def gcs_base_url() -> str | None:
    """Return the address that a Google key itself names, as keys of test servers do."""
    try:
        address = gcs_key().get("gcs_base_url")
    except ValueError:
        return None  # the first request reports what is wrong with the key
    return address if isinstance(address, str) else None


def gce_metadata_hosts() -> list[str]:
    """Return the hosts that issue tokens to a machine of Google: name, address, and those of the environment."""
    named = (os.environ.get(f"GCE_METADATA_{name}") for name in ("HOST", "ROOT", "IP"))
    return ["metadata.google.internal", "169.254.169.254", *(host.partition(":")[0] for host in named if host)]


def adc_file() -> Path:
    """Return the file in which gcloud stores application default credentials."""
    home = os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser()
    return Path(home) / "application_default_credentials.json"


def _product_name() -> str:
    """Return the machine's name in its firmware; "" if it has none that this process may read."""
    try:
        return PRODUCT_NAME.read_text().strip()
    except OSError:
        return ""
