"""Uploads in parts to Azure: each part is a block of the blob, and the list of blocks completes it. A `PartTransport`.

The store knows no upload, only the blocks that were put for a blob and are in no list yet; it drops them a week after
the last one. So an upload is a name that Bayou makes, and each block id depends on it. Azure's SDK signs and sends the
requests; it is an extra, and imported only for a file that is sent in parts. It gets the address and the credential of
the store's other requests, and nothing else: it retries nothing, since `Store` does, and follows no redirect (V26).
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from bayou.core import activity
from bayou.core.errors import BayouError, TimedOut, UploadGone
from bayou.core.extras import AZURE, first_missing
from bayou.core.ids import ulid
from bayou.objectstore.backends.boto_parts import certificates
from bayou.objectstore.backends.obstore_errors import (
    Renewal,
    Request,
    cannot_connect,
    connection_broke,
    from_status,
    no_answer,
    no_progress,
    unreadable_answer,
)
from bayou.objectstore.keys import content_type
from bayou.objectstore.transport import PutResult, UnfinishedUpload
from bayou.objectstore.url import EMULATOR

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIB = 1 << 20
_API = "2023-11-03"
"""The version of the protocol that obstore speaks, so that a server that knows its requests knows these too."""

_CONNECT_S = 5.0
_EMULATOR_ACCOUNT = "devstoreaccount1"
# Every emulator has this account and key; Microsoft has published them, and they open nothing else.
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "account": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "use_emulator": ("AZURE_STORAGE_USE_EMULATOR",),
    "skip_signature": ("AZURE_SKIP_SIGNATURE",),
    "key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    "token": ("AZURE_STORAGE_TOKEN",),
    "sas": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}
"""The variables in which obstore finds a setting that no option gives."""

_OBSTORE_ONLY = (
    *("AZURE_FABRIC_", "AZURE_USE_FABRIC_ENDPOINT", "AZURE_CREDENTIAL_TYPE", "AZURE_STORAGE_ENCRYPTION_KEY"),
    *("AZURE_PROXY_", "AZURE_ALLOW_INVALID_CERTIFICATES"),
)
_BEFORE_SAS = ("AZURE_CLIENT_", "AZURE_STORAGE_CLIENT_", "AZURE_FEDERATED_")
"""Variables with one of these prefixes name credentials that obstore prefers to a SAS."""

_ON = frozenset({"1", "true", "on", "yes", "y"})


class AzureParts:
    """The uploads in blocks to one container."""

    def __init__(self, target: str, address: str, client: Any, renewal: Renewal) -> None:
        self._target = target
        self._address = address
        self._client = client
        self._renewal = renewal

    @property
    def least_part(self) -> int:
        return _MIB

    @property
    def registered(self) -> bool:
        return False

    def begin(self, key: str, *, timeout: float) -> str:
        return ulid()

    def put_part(self, key: str, upload: str, number: int, data: Buffer, *, timeout: float) -> str:
        content = bytes(data)
        block = _block_id(upload, number, content)
        body = _Body(content, time.monotonic() + timeout, self._about(key))
        self._call(key, timeout, lambda blob, limits: blob.stage_block(block, body, len(body), **limits))
        return block

    def complete(self, key: str, upload: str, tags: Sequence[str], *, timeout: float) -> PutResult:
        from azure.storage.blob import BlobBlock, ContentSettings  # noqa: PLC0415

        blocks = [BlobBlock(tag, _Uncommitted()) for tag in tags]
        settings = ContentSettings(content_type=content_type(key))
        answer = self._call(
            key, timeout, lambda blob, limits: blob.commit_block_list(blocks, content_settings=settings, **limits)
        )
        etag = answer.get("etag") or None
        if etag is not None and not etag.endswith('"'):
            etag = f'"{etag}"'
        return PutResult(etag, answer.get("version_id"))

    def abort(self, key: str, upload: str, *, timeout: float) -> None:
        """Do nothing: the store has no request that drops blocks, and drops them by itself."""

    def unfinished(self, prefix: str, *, timeout: float) -> Iterator[Sequence[UnfinishedUpload]]:
        return iter(())

    def _about(self, key: str) -> Request:
        return Request("PUT", key, self._target, self._renewal, self._address)

    def _call(self, key: str, timeout: float, call: Callable[[Any, Mapping[str, float]], Any]) -> Any:
        from azure.core import exceptions as azure  # noqa: PLC0415

        about = self._about(key)
        limits = {"connection_timeout": min(_CONNECT_S, timeout), "read_timeout": timeout}
        try:
            return call(self._client.get_blob_client(key), limits)
        except azure.HttpResponseError as error:
            raise _translate(error, about) from None
        except (azure.ServiceRequestTimeoutError, azure.ServiceResponseTimeoutError):
            raise no_answer(about) from None
        except azure.ServiceRequestError:
            raise cannot_connect(about) from None
        except azure.ServiceResponseError as error:
            raise (no_progress(about) if _stalled(error) else connection_broke(about)) from None
        except azure.AzureError:
            raise unreadable_answer(about) from None


class _Uncommitted:
    """The state of blocks in a list: those that no list has had yet.

    Once a list has made the blob, a late or repeated one so changes nothing, not even the ETag. The SDK compares this
    name in lower case, which that of its own `BlockState` is not, and sends "Latest" for every other one.
    """

    value = "uncommitted"


class _Body(io.BytesIO):
    """The bytes of a part. Reading fails once the time of the request is over, which ends the request."""

    def __init__(self, data: bytes, ends: float, about: Request) -> None:
        super().__init__(data)
        self._size = len(data)
        self._ends = ends
        self._about = about

    def __len__(self) -> int:
        return self._size

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._ends:
            raise TimedOut(f"{self._about} on {self._about.target} was not sent in time", hint="check the network")
        data = super().read(size)
        activity.handed_over(len(data))
        return data


def azure_parts(container: str, options: Mapping[str, str], renewal: Renewal) -> AzureParts | None:
    """Return the parts of a container with the settings of its obstore client.

    None where the SDK is not installed, and for credentials and settings that only obstore has: the login of a client,
    a managed identity, the Azure CLI, Fabric, a key of the customer's.
    """
    if first_missing(AZURE) is not None or any(name.startswith(_OBSTORE_ONLY) for name in os.environ):
        return None
    try:
        settings = {name: options.get(name) or _variable(*names) for name, names in _VARIABLES.items()}
    except _AmbiguousError:
        return None
    account, endpoint = settings["account"], settings["endpoint"]
    if _on(settings["use_emulator"]):
        account = account or _EMULATOR_ACCOUNT
        endpoint = f"{(os.environ.get('AZURITE_BLOB_STORAGE_URL') or EMULATOR).rstrip('/')}/{account}"
        if not any(settings[kind] for kind in ("key", "token", "sas")):
            settings["key"] = _EMULATOR_KEY
        if settings["key"]:
            settings["token"] = None  # for an emulator obstore prefers the key, elsewhere the token
    if not account:
        return None
    address = endpoint or f"https://{account}.blob.core.windows.net"
    access = _access(settings, account)
    if access is None:
        return None
    return AzureParts(f"az://{container}", address, _client(container, address, access), renewal)


def _access(settings: Mapping[str, str | None], account: str) -> dict[str, Any] | None:
    """Return the SDK's arguments for the credential that obstore uses; None if only obstore can use it."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential  # noqa: PLC0415

    if _on(settings["skip_signature"]):
        return {}
    if token := settings["token"]:
        # As a header: the SDK's own way asks for another token after a 401, and sends the request again.
        return {"headers": {"Authorization": f"Bearer {token}"}}
    if key := settings["key"]:
        return {"credential": AzureNamedKeyCredential(account, key)}
    if (sas := settings["sas"]) and not any(name.startswith(_BEFORE_SAS) for name in os.environ):
        pairs = [pair.strip().partition("=")[::2] for pair in unquote(sas).lstrip("?").split("&") if pair.strip()]
        return {"credential": AzureSasCredential(urlencode(pairs, quote_via=quote))}
    return None


def _client(container: str, address: str, access: Mapping[str, Any]) -> Any:
    """Make a client that sends each request once, to this address only."""
    from azure.core.pipeline.transport import RequestsTransport  # noqa: PLC0415
    from azure.storage.blob import ContainerClient  # noqa: PLC0415

    log = logging.getLogger("azure")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # or the SDK's warnings go to this command's stderr
    host = urlsplit(address).hostname or ""
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    # Without the settings of the environment: requests would send the password that a .netrc has for this host.
    transport = RequestsTransport(use_env_settings=False, connection_verify=certificates() or True)
    return ContainerClient(
        address,
        container,
        transport=transport,
        proxies=proxies,
        api_version=_API,
        retry_total=0,
        permit_redirects=False,
        user_agent="bayou",
        **access,
    )


class _AmbiguousError(Exception):
    """Variables for one setting differ, and only obstore knows which one it takes."""


def _variable(*names: str) -> str | None:
    """Return the value of the variables for one setting."""
    found = {value for name in names if (value := os.environ.get(name))}
    if len(found) > 1:
        raise _AmbiguousError
    return found.pop() if found else None


def _on(switch: str | None) -> bool:
    return (switch or "").lower() in _ON


def _block_id(upload: str, number: int, content: bytes) -> str:
    """Return the id of a part's block, which stands for the upload, the number and the bytes.

    V11: a late request of an earlier command, which read other bytes, replaces no block; S3 has the ETag of each part
    for that. All ids of a blob have one length: 32 characters, as obstore's, which has perhaps begun this file.
    """
    return f"{number:06}{hashlib.blake2b(content, digest_size=13, key=upload.encode()).hexdigest()}"


def _stalled(error: Any) -> bool:
    """Return whether a connection broke because nothing moved in time."""
    cause = error.inner_exception
    while cause is not None and not isinstance(cause, TimeoutError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _translate(error: Any, about: Request) -> BayouError:
    """Translate an error response."""
    if getattr(error, "error_code", None) == "InvalidBlockList":
        return UploadGone(f"the store no longer has the parts of {about.key}", hint="try again")
    if error.status_code is None:
        return unreadable_answer(about)
    body = error.response.text() if error.response is not None else ""
    return from_status(error.status_code if error.status_code >= 300 else 500, body, about)
