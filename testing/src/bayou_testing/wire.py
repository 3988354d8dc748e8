"""HTTP/1.1 as bytes: read one message, write one message.

Own code instead of `http.server`, for two reasons: a proxy must pass on what it read, byte for byte (SigV4 signs
headers and target as sent), and a test that makes thousands of requests should not pay for the e-mail parser on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

_MAX_HEAD = 256 * 1024
_NO_BODY = frozenset({204, 304})


class BadMessage(Exception):
    """What came is not HTTP/1.1 as we speak it."""


class Request(Struct, frozen=True):
    """One request, read whole. `head` and `wire_body` are the bytes as they came; the rest is what they mean."""

    method: str
    path: str
    query_string: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    head: bytes
    wire_body: bytes
    keep_alive: bool


class Response(Struct, frozen=True):
    """One answer, ready to send: `head` ends with the blank line, `body` is framed as `head` says."""

    status: int
    head: bytes
    body: bytes
    keep_alive: bool = True


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Response:
    """Make an answer with its length; to a HEAD request, the sender leaves the body out."""
    lines = [f"HTTP/1.1 {status} {_reason(status)}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if status not in _NO_BODY:
        lines.append(f"Content-Length: {len(body)}")
    return Response(status, ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8"), b"" if status in _NO_BODY else body)


def read_head(stream: BinaryIO) -> tuple[bytes, list[bytes]] | None:
    """Read up to the blank line; None when the peer has closed between two messages."""
    lines: list[bytes] = []
    size = 0
    while True:
        line = stream.readline(_MAX_HEAD)
        if not line:
            if lines:
                raise ConnectionError("the peer closed in the middle of a head")
            return None
        size += len(line)
        if size > _MAX_HEAD:
            raise BadMessage("head too large")
        lines.append(line)
        if line in (b"\r\n", b"\n"):
            return b"".join(lines), lines


def parse_headers(lines: list[bytes]) -> dict[str, str]:
    """Read the header lines after the first one; names in lower case, repeated ones joined by a comma."""
    headers: dict[str, str] = {}
    for line in lines[1:-1]:
        name, colon, value = line.decode("utf-8", "surrogateescape").partition(":")
        if not colon:
            raise BadMessage(f"not a header: {line!r}")
        key, text = name.strip().lower(), value.strip()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def read_body(stream: BinaryIO, headers: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Read a body that announces its extent; return what it means, and the bytes as they came."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        data: list[bytes] = []
        wire: list[bytes] = []
        for framing, chunk in _chunks(stream):
            wire += (framing, chunk)
            data.append(chunk[:-2])
        return b"".join(data), b"".join(wire)
    body = read_exactly(stream, _length(headers))
    return body, body


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """Read so many bytes; fewer mean that the peer went away."""
    data = stream.read(size) if size else b""
    if len(data) < size:
        raise ConnectionError(f"the peer closed after {len(data)} of {size} bytes")
    return data


def read_request(head: bytes, lines: list[bytes], headers: Mapping[str, str], stream: BinaryIO) -> Request:
    """Read the body that belongs to a head, and put the request together."""
    try:
        method, target, version = lines[0].decode("utf-8").split()
    except ValueError as error:
        raise BadMessage(f"not a request line: {lines[0]!r}") from error
    body, wire_body = read_body(stream, headers)
    raw_path, _, query_string = target.partition("?")
    return Request(
        method=method,
        path=unquote(raw_path, errors="surrogateescape"),
        query_string=query_string,
        query=dict(parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape")),
        headers=headers,
        body=body,
        head=head,
        wire_body=wire_body,
        keep_alive=version == "HTTP/1.1" and headers.get("connection", "").lower() != "close",
    )


def read_response(stream: BinaryIO, method: str) -> Response:
    """Read the final answer to a request of this method, passing over interim ones (1xx)."""
    while True:
        got = read_head(stream)
        if got is None:
            raise ConnectionError("the peer closed without an answer")
        head, lines = got
        try:
            status = int(lines[0].split(None, 2)[1])
        except (IndexError, ValueError) as error:
            raise BadMessage(f"not a status line: {lines[0]!r}") from error
        if status >= 200:
            break
    headers = parse_headers(lines)
    keep_alive = headers.get("connection", "").lower() != "close"
    if method == "HEAD" or status in _NO_BODY:
        return Response(status, head, b"", keep_alive)
    if "content-length" in headers or "transfer-encoding" in headers:
        return Response(status, head, read_body(stream, headers)[1], keep_alive)
    return Response(status, head, stream.read(), keep_alive=False)


def _chunks(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield each chunk as its framing line and its bytes with their line end; the last is empty but for trailers."""
    while True:
        framing = stream.readline(_MAX_HEAD)
        try:
            size = int(framing.split(b";")[0], 16)
        except ValueError as error:
            if not framing:
                raise ConnectionError("the peer closed between two chunks") from error
            raise BadMessage(f"not a chunk: {framing!r}") from error
        if size:
            yield framing, read_exactly(stream, size + 2)
            continue
        trailers = b""
        while (line := stream.readline(_MAX_HEAD)) not in (b"\r\n", b"\n"):
            if not line:
                raise ConnectionError("the peer closed before the last chunk")
            trailers += line
        yield framing + trailers + line, b""
        return


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise BadMessage(f"not a length: {text!r}")
    return int(text)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
