"""What time it is where the store is, without a write: every answer of an HTTP server says when it was sent."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime

from bayou.core.clock import to_ms
from bayou.store.fetch import open_address


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
