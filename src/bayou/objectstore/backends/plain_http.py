"""Single HTTP requests without obstore, for the few that it cannot send: limited in time and size, with Bayou's errors.

`server_time` reads a store's clock without a write: the header `Date` of every response has it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from bayou.core import limits
from bayou.core.clock import to_ms
from bayou.core.errors import BadAnswer, CannotConnect, TimedOut
from bayou.objectstore.backends.obstore_errors import Request, connection_broke, from_status

_MAX_ERROR = 64 << 10


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Return a redirect as the response: following it would send credentials to the host that it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


def open_address(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request, and return the response; a redirect raises `HTTPError`."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        with contextlib.suppress(OSError):  # the request then fails for want of the certificate, and says so
            trusted = ssl.create_default_context()
            trusted.load_verify_locations(bundle)
            handlers.append(urllib.request.HTTPSHandler(context=trusted))
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


def fetch(
    address: str, headers: Mapping[str, str], about: Request, timeout: float, *, form: bytes | None = None
) -> bytes:
    """Send one GET, or a POST of a form, and return the body; raise only errors of Bayou."""
    request = urllib.request.Request(address, form, dict(headers))
    ends = time.monotonic() + timeout
    try:
        with open_address(request, timeout) as answer:
            body = bytearray()
            while part := answer.read1(1 << 16):
                body += part
                if len(body) > limits.LISTING_BYTES:
                    raise BadAnswer(f"the answer to {about} on {about.target} has no end", hint="check the endpoint")
                if time.monotonic() > ends:
                    raise TimedOut(f"no whole answer in time to {about} on {about.target}")
            return bytes(body)
    except urllib.error.HTTPError as error:
        raise from_status(error.code, _body_of(error), about, reason=str(error.reason)) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TimedOut(f"no answer in time to {about} on {about.target}") from None
        raise CannotConnect(f"cannot connect to {about.target}", hint="check the endpoint and the network") from None
    except TimeoutError:
        raise TimedOut(f"no answer in time to {about} on {about.target}") from None
    except (OSError, http.client.HTTPException):
        raise connection_broke(about) from None


def _body_of(error: urllib.error.HTTPError) -> str:
    """Return the body of an error response, as far as it arrived."""
    try:
        with error:
            return error.read(_MAX_ERROR).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def server_time(address: str, timeout: float) -> int | None:
    """Return a server's time in ms, exact to a second; None if it does not report it. An error response has it too."""
    try:
        try:
            with open_address(urllib.request.Request(address, method="HEAD"), timeout) as answer:
                date = answer.headers.get("Date")
        except urllib.error.HTTPError as refusal:
            with refusal:
                date = refusal.headers.get("Date")
        return None if date is None else to_ms(parsedate_to_datetime(date))
    except (OSError, http.client.HTTPException, ValueError):
        return None
