"""Translate obstore's errors to Bayou's; no other module does.

obstore raises an exception with a text that holds the status, the body of the response and the cause. The class alone
is not enough: a 409 arrives as "already exists", a missing bucket as "not found". So this module parses the text too,
and puts one short line of it, without secrets, into Bayou's message.
"""

from __future__ import annotations

import re

from msgspec import Struct
from obstore import exceptions as obs

from bayou.core import errors

NOWHERE = "0.0.0.0:0"
"""The proxy for requests to foreign hosts (see `providers`). Connecting to port 0 fails at once."""

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
_TEXT_LIMIT = 8_000
"""Real error messages are shorter. A hostile response may have megabytes, which no pattern may search."""

_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "TokenExpired"}
)
_UNKNOWN_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"})
_ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_NO_KEY = frozenset({"NoSuchKey", "BlobNotFound", "ResourceNotFound", "NoSuchVersion"})
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "UserProjectAccountProblem"})
_TAKEN = frozenset({"BlobAlreadyExists", "ResourceAlreadyExists"})
_BROKEN_OFF = frozenset({"RequestTimeout", "IncompleteBody"})
"""S3's codes for a request body that did not arrive; the status is 400, as for a bad request."""

_NO_OBJECT = re.compile(r"Object at location .* not found")
"""obstore's text for an absent object, but not for an absent file, such as a token file (V4)."""
_CREDENTIAL = re.compile(r"(?i)credential error|service account|private key|RSA key|CryptoProvider")
_PATH = re.compile(r"[Pp]arsing [Pp]ath|empty path segment|illegal character sequence")


_REGION_HINT = "set the bucket's region: bayou datastore setup URL --option region=NAME"
_ABILITY_HINT = "use a store with conditional writes: S3, GCS, Azure, MinIO, R2, Ceph, SeaweedFS, or a directory"
CONNECT_HINT = "check the address (of the option endpoint, or the environment), the network, and that the server runs"
_TLS = "TLS failed"
_TLS_HINT = (
    "check the address; if a private CA has signed its certificate, "
    "name the CA's file in SSL_CERT_FILE (for S3 also AWS_CA_BUNDLE)"
)
ENDPOINT_HINT = "check that the endpoint is an object store, and not a proxy's or a web server's page"


_NO_ETAG = re.compile(r"(?i)ETag header missing|missing field .ETag")
_NO_METADATA = re.compile(r"(?i)(?:Last-Modified|Content-Length) header missing")
"""obstore's text for a success without the headers that each object of GCS and Azure has: a web page, not an object."""
_COMPLETED = re.compile(r"(?i)invalid multipart response: missing field .ETag")


class Renewal(Struct, frozen=True):
    """Hints on how a user of one provider gets or renews credentials."""

    missing: str
    expired: str


class UnparsableKey(Exception):
    """obstore cannot represent a key in a listing; `strict_listing` has to take over."""


class Request(Struct, frozen=True):
    """The request that failed, for messages and for interpreting the response."""

    verb: str
    key: str
    target: str
    renewal: Renewal
    address: str | None = None
    """The server's address, which a message about the connection names."""

    @property
    def server(self) -> str:
        return f"{self.target} at {self.address}" if self.address else self.target

    def __str__(self) -> str:
        return f"{self.verb} {self.key}" if self.key else self.verb


def translate(error: Exception, request: Request) -> errors.BayouError | UnparsableKey:
    """Translate an exception of obstore to an error of Bayou."""
    text = str(error)
    answer = _STATUS.search(text[:_TEXT_LIMIT])
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
        return _denied(f"{request} on {request.target} was refused")
    if isinstance(error, obs.UnauthenticatedError):
        return errors.CredentialsExpired(
            f"credentials for {request.target} were not accepted", hint=request.renewal.expired
        )
    return _without_answer(text, request)


def is_completed_without_etag(error: Exception) -> bool:
    """Return whether a server has answered the end of a multipart upload without the object's ETag, as some do."""
    return _COMPLETED.search(str(error)) is not None


def _without_answer(text: str, request: Request) -> errors.BayouError:
    kind = _KIND.search(text)
    where = f"{request} on {request.target}"
    if f" {NOWHERE}," in text:
        return errors.WrongRegion(
            f"{request.target} redirects {request} to another host, where no request follows",
            hint=_REGION_HINT if request.target.startswith("s3:") else ENDPOINT_HINT,
        )
    if re.search(r"kind: Timeout|TimedOut|operation timed out", text):
        return no_answer(request)
    if (kind and kind[1] == "Connect") or "tcp connect error" in text or "dns error" in text:
        return errors.CannotConnect(
            f"cannot connect to {request.server} ({_cause(text)})",
            hint=_TLS_HINT if _cause(text) == _TLS else CONNECT_HINT,
        )
    if _NO_ETAG.search(text):
        return errors.BadAnswer(
            f"the answer to {where} has no ETag, without which Bayou cannot tell versions apart", hint=ENDPOINT_HINT
        )
    if _NO_METADATA.search(text):
        return errors.BadAnswer(f"the answer to {where} is not an object", hint=ENDPOINT_HINT)
    if re.search(r"(?i)redirect without location", text):
        return errors.WrongRegion(f"{request.target} is in another region", hint=_REGION_HINT)
    if _CREDENTIAL.search(text):
        return errors.CredentialsMissing(
            f"credentials for {request.target} cannot be used: {one_line(text)}", hint=request.renewal.missing
        )
    if re.search(
        r"(?i)invalid list response|error parsing|deserializ|unexpected end|invalid xml|Decode|missing field", text
    ):
        return errors.BadAnswer(f"the answer to {where} makes no sense: {one_line(text)}", hint=ENDPOINT_HINT)
    if kind is not None or re.search(
        r"(?i)server returned error response|http error|connection|request or response body|broken pipe|reset", text
    ):
        return connection_broke(request)
    if re.search(r"(?i)credential|token|metadata server|metadata endpoint|imds|sso", text):
        return errors.CredentialsMissing(
            f"no credentials for {request.target}: {one_line(text)}", hint=request.renewal.missing
        )
    return errors.Rejected(f"{where} failed: {one_line(text)}", hint="check the URL and [datastore.options]")


def no_answer(request: Request) -> errors.TimedOut:
    return errors.TimedOut(
        f"no answer in time to {request} on {request.server}", hint="check the network and the store's health"
    )


def no_progress(request: Request) -> errors.TimedOut:
    return errors.TimedOut(f"{request} on {request.target} made no progress", hint="check the network")


def connection_broke(request: Request) -> errors.Unavailable:
    return errors.Unavailable(f"the connection broke during {request} on {request.server}", hint="try again")


def cannot_connect(request: Request) -> errors.CannotConnect:
    return errors.CannotConnect(f"cannot connect to {request.server}", hint=CONNECT_HINT)


def unreadable_answer(request: Request) -> errors.BadAnswer:
    """Return the error for an answer that an SDK cannot read; the SDK's own text is left out: it may quote a secret."""
    return errors.BadAnswer(f"the answer to {request} on {request.target} makes no sense", hint="check the endpoint")


def from_status(status: int, body: str, request: Request, *, reason: str = "") -> errors.BayouError:
    """Translate a response that is not a success to an error of Bayou."""
    body = body[:_TEXT_LIMIT]
    code = _first(_CODE, body)
    summary = _summary(status, reason, code, body)
    what = f"{request} on {request.target}: {summary}"
    if code in _EXPIRED or (status in (400, 401, 403) and "has expired" in body):
        return errors.CredentialsExpired(
            f"credentials for {request.target} have expired: {summary}", hint=request.renewal.expired
        )
    if status in (301, 302, 303, 307, 308) or code in _ELSEWHERE:
        region = _REGION.search(body)
        name = next((group for group in region.groups() if group), None) if region else None
        hint = _REGION_HINT.replace("NAME", name) if name else _REGION_HINT
        return errors.WrongRegion(
            f"{request.target} is in another region{f', {name}' if name else ''}: {summary}", hint=hint
        )
    if status == 404:
        return _absent(code, body, request, what)
    if status in (304, 412):
        return errors.PreconditionFailed(f"{request.key} has changed")
    if status == 409 and code in _TAKEN:
        return errors.AlreadyExists(f"{request.key} exists already")
    if status == 401:
        return errors.CredentialsExpired(
            f"credentials for {request.target} are missing, wrong or expired: {summary}", hint=request.renewal.expired
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
    """Interpret a 404. V4: only the store's own code for "no such key" means absent."""
    if code in _NO_BUCKET:
        return errors.NoSuchBucket(
            f"there is no {request.target}", hint="check the name in the URL, or create the bucket"
        )
    if code in _NO_KEY or (request.verb == "HEAD" and not body.strip()):
        return errors.NotFound(f"no such key: {request.key}")
    at = f" at {request.address}" if request.address else ""
    return errors.BadAnswer(f"a 404 that is not the store's{at}: {what}", hint=ENDPOINT_HINT)


def _denied(message: str) -> errors.AccessDenied:
    return errors.AccessDenied(
        message,
        hint="allow these credentials to get, put, list and delete below the prefix",
    )


def _summary(status: int, reason: str, code: str | None, body: str) -> str:
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
    """Return in two or three words why the connection failed."""
    for pattern, words in (
        (r"ConnectionRefused|Connection refused", "connection refused"),
        (r"dns error|failed to lookup|Name or service not known", "unknown host"),
        (r"(?i)certificate|tls|ssl", _TLS),
        (r"unreachable", "network unreachable"),
    ):
        if re.search(pattern, text):
            return words
    return "no connection"


def one_line(text: str) -> str:
    """Return a text as one short line without markup, debug output and secrets."""
    import html  # noqa: PLC0415  (only for errors)

    text = text[:_TEXT_LIMIT].split("\n\nDebug source:", maxsplit=1)[0]
    text = " ".join(html.unescape(_TAG.sub(" ", text)).split())
    text = "".join(char for char in text if char.isprintable())
    text = _SECRET.sub(r"\1=…", _PEM.sub("…", text))
    text = _USER.sub("://…@", _BEARER.sub("bearer …", text))
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1].strip() if found else None
