"""An S3 server with the habits of other servers: SeaweedFS behind a front that reads and writes ETags in its own way.

    with QuirkyS3(seaweed, unquoted_match=True) as ceph: ...

The front signs every request anew, so that it may change headers; it checks no signature itself. With a certificate it
serves TLS.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from bayou_testing.faults import Faults
from bayou_testing.s3 import S3Endpoint
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import Request, Response, answer

_PASSED_ON = frozenset({"if-match", "if-none-match", "range", "content-type"})
_KEPT = frozenset({"etag", "last-modified", "content-type", "content-range", "accept-ranges"})
_IN_XML = re.compile(rb"<ETag>(?:&#34;|&quot;|\")?(.*?)(?:&#34;|&quot;|\")?</ETag>")

Etags = Literal["quoted", "unquoted", "missing"]


class QuirkyS3(LoopbackServer):
    """A front of an S3 server.

    `unquoted_match`: a swap whose `If-Match` has quotes fails, as in Ceph before 20. `no_conditions`: it ignores the
    conditions of writes. `multipart_etags`: how the end of a multipart upload gives the ETag; `unquoted` also drops the
    quotes of every header.
    """

    def __init__(
        self,
        upstream: S3Endpoint,
        *,
        unquoted_match: bool = False,
        no_conditions: bool = False,
        multipart_etags: Etags = "quoted",
        tls: tuple[Path, Path] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._upstream = upstream
        self._unquoted_match = unquoted_match
        self._no_conditions = no_conditions
        self._multipart_etags = multipart_etags
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*tls)
        super().__init__(faults)
        if tls is not None:
            self.url = self.url.replace("http:", "https:")

    def converse(self, connection: socket.socket) -> None:
        if self._tls is None:
            super().converse(connection)
            return
        try:
            wrapped = self._tls.wrap_socket(connection, server_side=True)
        except OSError:
            return  # the client does not trust the certificate
        with wrapped:
            super().converse(wrapped)

    def respond(self, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
        if request.method == "PUT":
            if self._no_conditions:
                headers.pop("if-match", None)
                headers.pop("if-none-match", None)
            wanted = headers.get("if-match")
            if wanted is not None and self._unquoted_match:
                if wanted.startswith('"'):
                    return _refused()
                headers["if-match"] = f'"{wanted}"'
            elif wanted is not None and not wanted.startswith('"'):
                return _refused()
        status, found, body = self._upstream.exchange(
            request.method, request.path, query=request.query, body=request.body, headers=headers
        )
        kept = {name: value for name, value in found.items() if name in _KEPT}
        return self._answer(request, status, kept, body, found.get("content-length"))

    def _answer(
        self, request: Request, status: int, headers: dict[str, str], body: bytes, length: str | None
    ) -> Response:
        if self._multipart_etags == "unquoted" and "etag" in headers:
            headers["etag"] = headers["etag"].strip('"')
        if request.method == "POST" and "uploadId" in request.query and self._multipart_etags != "quoted":
            body = _IN_XML.sub(rb"<ETag>\1</ETag>" if self._multipart_etags == "unquoted" else b"", body)
        made = answer(status, body, headers)
        if request.method != "HEAD" or length is None:
            return made
        return Response(status, made.head.replace(b"Content-Length: 0", f"Content-Length: {length}".encode()), b"")


def environment(server: S3Endpoint) -> Mapping[str, str]:
    """Return credentials for a front of this server, without its address."""
    return {name: value for name, value in server.env().items() if name != "AWS_ENDPOINT_URL"}


def _refused() -> Response:
    body = b"<Error><Code>PreconditionFailed</Code><Message>a condition does not hold</Message></Error>"
    return answer(412, body, {"Content-Type": "application/xml"})
