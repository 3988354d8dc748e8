"""One HTTP request without obstore, for the few that it cannot send: bounded in time and size, with our errors.

What time it is where the store is, without a write: every answer of an HTTP server says when it was sent.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from bayou.core import limits
from bayou.core.clock import to_ms
from bayou.core.errors import BadAnswer, CannotConnect, TimedOut, Unavailable
from bayou.objectstore.backends.obstore_errors import Request, from_status

_MAX_ERROR = 64 << 10


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Take a redirect for the answer: following it would hand our credentials to whomever it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


def open_address(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request, and return the answer; a redirect is one that is an error."""
    return urllib.request.build_opener(_NoRedirects()).open(request, timeout=timeout)


def fetch(
    address: str, headers: Mapping[str, str], about: Request, timeout: float, *, form: bytes | None = None
) -> bytes:
    """Send one GET, or POST of a form, and return the body; bounded in time and size, and our errors."""
    request = urllib.request.Request(address, form, dict(headers))
    ends = time.monotonic() + timeout
    try:
        with open_address(request, timeout) as answer:
            body = bytearray()
            while part := answer.read1(1 << 16):
                body += part
                if len(body) > limits.LISTING_BYTES:
                    raise BadAnswer(f"the answer to {about} on {about.place} has no end", hint="check the endpoint")
                if time.monotonic() > ends:
                    raise TimedOut(f"no whole answer in time to {about} on {about.place}")
            return bytes(body)
    except urllib.error.HTTPError as error:
        raise from_status(error.code, _told(error), about, reason=str(error.reason)) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TimedOut(f"no answer in time to {about} on {about.place}") from None
        raise CannotConnect(f"cannot connect to {about.place}", hint="check the endpoint and the network") from None
    except TimeoutError:
        raise TimedOut(f"no answer in time to {about} on {about.place}") from None
    except (OSError, http.client.HTTPException):
        raise Unavailable(f"the connection broke during {about} on {about.place}", hint="try again") from None


def _told(error: urllib.error.HTTPError) -> str:
    """Return what came with an error, as far as it came."""
    try:
        with error:
            return error.read(_MAX_ERROR).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def served_at(address: str, timeout: float) -> int | None:
    """Return a server's time, in ms and exact to a second; None if it does not tell. A refusal tells it as well."""
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
