"""obstore's errors become ours, once, here.

obstore gives a class, and a text that holds the status, the answer's body and the cause. The class alone is not
enough: a 409 comes as "already exists", a missing bucket as "not found". So the text is read too, and what goes into
our message is one short line of it, without secrets.

Where the requests of an obstore client may go: to the store's own host, over TLS unless its address says otherwise.

obstore follows redirects, and there is no option against it. Across hosts it drops the header `Authorization`, but
neither the token of an AWS session nor what stands in the body of a request (Azure's bulk delete). So whatever is not
meant for a host of the store, or for those of its provider that give out tokens, is sent to a proxy that cannot exist,
and fails there (V26). What this user's own environment says of hosts and proxies holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from obstore import exceptions as obs

from bayou.core import errors
from bayou.objectstore.url import is_clear_text

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


_STATUS = re.compile(r"status code: (\d{3})([^:]*): ?(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_REQUEST_ID = re.compile(r"<(?:RequestId|RequestID|HostId)>([^<]{1,80})</|[Rr]equest-?[Ii]d:\s*([\w-]{8,80})")
_REGION = re.compile(r"expecting '([a-z0-9-]+)'|<Region>([a-z0-9-]+)</Region>")
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_SECRET = re.compile(
    r"(?i)(?<![\w.-])(?=(?:sig|sas)(?![\w.-])|[\w.-]*?(?:secret|token|passw|signature|credential|authorization"
    r"|access_?key|account_?key|private_?key|api_?key|x-amz-|x-goog-|x-ms-))"
    r"([\w.-]++)[\"']?\s*[=:]\s*(?:(?:bearer|basic|sharedkey|aws4-hmac-sha256)\s+)?"
    r"(?:\"[^\"]*\"?|'[^']*'?|[^\s&\"'<>,;]+)"
)
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"'<>,;]{6,}")
_USER = re.compile(r"://[^/\s@]*@")
_PEM = re.compile(r"-----BEGIN[^-]*-----.*?(?:-----END[^-]*-----|\Z)", re.DOTALL)
_LINE = 200
_LOOK = 8_000
"""Nobody's error message is longer. A hostile answer may be, and patterns must not be run over megabytes of it."""

_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "TokenExpired"}
)
_UNKNOWN_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"})
_ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_NO_KEY = frozenset({"NoSuchKey", "BlobNotFound", "ResourceNotFound", "NoSuchVersion"})
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "UserProjectAccountProblem"})
_TAKEN = frozenset({"BlobAlreadyExists", "ResourceAlreadyExists"})
_BROKEN_OFF = frozenset({"RequestTimeout", "IncompleteBody"})
"""S3's words for a body that did not arrive, with a status of 400 that does not say so."""

_NO_OBJECT = re.compile(r"Object at location .* not found")
"""What obstore says of an object, and of no file that it may look for elsewhere (V4)."""
_CREDENTIAL = re.compile(r"(?i)credential error|service account|private key|RSA key|CryptoProvider")
_PATH = re.compile(r"[Pp]arsing [Pp]ath|empty path segment|illegal character sequence")


class Renewal(Struct, frozen=True):
    """How the people of one provider get credentials, for hints."""

    missing: str
    expired: str


class UnparsableKey(Exception):
    """obstore cannot represent a key that the listing holds; a listing that copes has to take over."""


class Request(Struct, frozen=True):
    """What was asked, for messages and for reading the answer."""

    verb: str
    key: str
    place: str
    renewal: Renewal

    def __str__(self) -> str:
        return f"{self.verb} {self.key}" if self.key else self.verb


def translate(error: Exception, request: Request) -> errors.BayouError | UnparsableKey:
    """Turn what obstore raised into one error of ours."""
    text = str(error)
    answer = _STATUS.search(text[:_LOOK])
    if answer is not None:
        return from_status(int(answer[1]), answer[3], request, reason=answer[2].strip())
    if _PATH.search(text):
        return UnparsableKey(one_line(text))
    if isinstance(error, FileNotFoundError) and _NO_OBJECT.match(text):
        return errors.NotFound(f"no such key: {request.key}")
    if isinstance(error, obs.AlreadyExistsError):
        return errors.AlreadyExists(f"{request.key} exists already")
    if isinstance(error, obs.PreconditionError):
        return errors.PreconditionFailed(f"{request.key} has changed")
    if isinstance(error, obs.PermissionDeniedError):
        return _denied(f"{request} on {request.place} was refused")
    if isinstance(error, obs.UnauthenticatedError):
        return errors.CredentialsExpired(
            f"credentials for {request.place} were not accepted", hint=request.renewal.expired
        )
    return _without_answer(text, request)


def _without_answer(text: str, request: Request) -> errors.BayouError:
    kind = _KIND.search(text)
    where = f"{request} on {request.place}"
    if f" {NOWHERE}," in text:
        return errors.WrongRegion(
            f"{request.place} redirects {request} to another host, where no request follows",
            hint=_REGION_HINT if request.place.startswith("s3:") else _ENDPOINT_HINT,
        )
    if re.search(r"kind: Timeout|TimedOut|operation timed out", text):
        return errors.TimedOut(f"no answer in time to {where}", hint="check the network and the store's health")
    if (kind and kind[1] == "Connect") or "tcp connect error" in text or "dns error" in text:
        return errors.CannotConnect(
            f"cannot connect to {request.place} ({_cause(text)})",
            hint="check the endpoint in [datastore.options], the network, and that the server runs",
        )
    if re.search(r"(?i)redirect without location", text):
        return errors.WrongRegion(f"{request.place} is in another region", hint=_REGION_HINT)
    if _CREDENTIAL.search(text):
        return errors.CredentialsMissing(
            f"credentials for {request.place} cannot be used: {one_line(text)}", hint=request.renewal.missing
        )
    if re.search(
        r"(?i)invalid list response|error parsing|deserializ|unexpected end|invalid xml|Decode|missing field", text
    ):
        return errors.BadAnswer(f"the answer to {where} makes no sense: {one_line(text)}", hint=_ENDPOINT_HINT)
    if kind is not None or re.search(
        r"(?i)server returned error response|http error|connection|request or response body|broken pipe|reset", text
    ):
        return errors.Unavailable(f"the connection broke during {where}", hint="try again")
    if re.search(r"(?i)credential|token|metadata|imds|sso", text):
        return errors.CredentialsMissing(
            f"no credentials for {request.place}: {one_line(text)}", hint=request.renewal.missing
        )
    return errors.Rejected(f"{where} failed: {one_line(text)}", hint="check the URL and [datastore.options]")


_REGION_HINT = "set the bucket's region: bayou datastore setup URL --option region=NAME"
_ABILITY_HINT = "use a store with conditional writes: S3, GCS, Azure, MinIO, R2, Ceph, SeaweedFS, or a directory"
_ENDPOINT_HINT = "check that the endpoint is an object store, and not a proxy's or a web server's page"


def from_status(status: int, body: str, request: Request, *, reason: str = "") -> errors.BayouError:
    """Turn an answer that is not a success into one error of ours."""
    body = body[:_LOOK]
    code = _first(_CODE, body)
    said = _said(status, reason, code, body)
    what = f"{request} on {request.place}: {said}"
    if code in _EXPIRED or (status in (400, 401, 403) and "has expired" in body):
        return errors.CredentialsExpired(
            f"credentials for {request.place} have expired: {said}", hint=request.renewal.expired
        )
    if status in (301, 302, 307, 308) or code in _ELSEWHERE:
        region = _REGION.search(body)
        name = next((group for group in region.groups() if group), None) if region else None
        hint = _REGION_HINT.replace("NAME", name) if name else _REGION_HINT
        return errors.WrongRegion(
            f"{request.place} is in another region{f', {name}' if name else ''}: {said}", hint=hint
        )
    if status == 404:
        return _absent(code, body, request, what)
    if status in (304, 412):
        return errors.PreconditionFailed(f"{request.key} has changed")
    if status == 409 and code in _TAKEN:
        return errors.AlreadyExists(f"{request.key} exists already")
    if status == 401:
        return errors.CredentialsExpired(
            f"credentials for {request.place} are missing, wrong or expired: {said}", hint=request.renewal.expired
        )
    if code in _UNKNOWN_KEYS:
        return errors.AccessDenied(f"the store does not accept these credentials: {what}", hint=request.renewal.missing)
    if code == "RequestTimeTooSkewed":
        return errors.AccessDenied(f"refused: {what}", hint="set this machine's clock right")
    if status == 403:
        return _denied(f"refused: {what}")
    if status in (501, 505):
        return errors.Rejected(f"the store cannot do this: {what}", hint=_ABILITY_HINT)
    if status in (408, 409, 425, 429) or status >= 500 or code in _BROKEN_OFF:
        return errors.Unavailable(f"the store is busy or unwell: {what}", hint="try again in a moment")
    return errors.Rejected(f"the store rejected {what}")


def _absent(code: str | None, body: str, request: Request, what: str) -> errors.StoreError:
    """Decide what a 404 means. V4: only the store's own word for "no such key" means absent."""
    if code in _NO_BUCKET:
        return errors.NoSuchBucket(
            f"there is no {request.place}", hint="check the name in the URL, or create the bucket"
        )
    if code in _NO_KEY or (request.verb == "HEAD" and not body.strip()):
        return errors.NotFound(f"no such key: {request.key}")
    return errors.BadAnswer(f"a 404 that is not the store's: {what}", hint=_ENDPOINT_HINT)


def _denied(message: str) -> errors.AccessDenied:
    return errors.AccessDenied(
        message,
        hint="allow these credentials to get, put, list and delete below the prefix; see bayou datastore status",
    )


def _said(status: int, reason: str, code: str | None, body: str) -> str:
    message = _first(_MESSAGE, body) or body
    name, line = one_line(code or reason), one_line(message)
    parts = [str(status), name]
    if line and line != name:
        parts.append(f"({line})")
    request_id = _REQUEST_ID.search(body)
    if request_id:
        parts.append(f"[request {one_line(request_id[1] or request_id[2])}]")
    return " ".join(part for part in parts if part)


def _cause(text: str) -> str:
    """Name why no connection came about, in two or three words."""
    for pattern, words in (
        (r"ConnectionRefused|Connection refused", "connection refused"),
        (r"dns error|failed to lookup|Name or service not known", "unknown host"),
        (r"(?i)certificate|tls|ssl", "TLS failed"),
        (r"unreachable", "network unreachable"),
    ):
        if re.search(pattern, text):
            return words
    return "no connection"


def one_line(text: str) -> str:
    """Return the gist of an answer in one short line: no markup, no debug output, no secret."""
    import html  # noqa: PLC0415  (only for errors)

    text = text[:_LOOK].split("\n\nDebug source:", maxsplit=1)[0]
    text = " ".join(html.unescape(_TAG.sub(" ", text)).split())
    text = "".join(char for char in text if char.isprintable())
    text = _SECRET.sub(r"\1=…", _PEM.sub("…", text))
    text = _USER.sub("://…@", _BEARER.sub("bearer …", text))
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1].strip() if found else None
