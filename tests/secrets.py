"""A private key for tests (of no system), and the forms in which a secret stands in texts."""

from __future__ import annotations

import base64
import json
import random
import shlex
import string
from urllib.parse import quote, quote_plus

_RANDOM = random.Random(2048)
_BODY = "".join(_RANDOM.choice(string.ascii_letters + string.digits + "+/") for _ in range(64 * 24 + 6)) + "=="
LINES = ["-----BEGIN RSA PRIVATE KEY-----", *(_BODY[at : at + 64] for at in range(0, len(_BODY), 64))]
LINES.append("-----END RSA PRIVATE KEY-----")
PEM = "\n".join(LINES) + "\n"
BODY = LINES[1:-1]


def forms(secret: str) -> dict[str, str]:
    """Return a secret as programs print it, by what they did to it."""
    data = secret.encode()
    wrapped = base64.encodebytes(data).decode()
    return {
        "itself": secret,
        "stripped": secret.strip(),
        "crlf": secret.replace("\n", "\r\n"),
        "repr": repr(secret),
        "repr of repr": repr(repr(secret)),
        "repr of bytes": repr(data),
        "json": json.dumps(secret),
        "json in json": json.dumps({"x": json.dumps({"y": secret})}),
        "collapsed": " ".join(secret.split()),
        "url": quote(secret, safe=""),
        "url with slashes": quote(secret),
        "form": quote_plus(secret),
        "shell": shlex.quote(secret),
        "base64 pem": base64.b64encode(data).decode(),
        "base64 wrapped pem": wrapped,
        "base64 urlsafe": base64.urlsafe_b64encode(data).decode(),
        "base64 +1": base64.b64encode(b"u:" + data).decode(),
        "base64 +2": base64.b64encode(b"u" + data).decode(),
        "indented": "".join(f"    {line}\n" for line in secret.splitlines()),
        "quoted": "".join(f"> {line}\n" for line in secret.splitlines()),
        "list": str(secret.splitlines()),
    }


def leaked(text: str) -> list[str]:
    """Return what a text tells of the key: lines of its body, as they are, escaped or in base64."""
    data = PEM.encode()
    encoded = [base64.b64encode(pad + data).decode() for pad in (b"", b"u", b"u:")]
    encoded += [one.replace("+", "-").replace("/", "_") for one in encoded]
    pieces = [*BODY, *(quote(line, safe="") for line in BODY)]
    pieces += [line[at : at + 16] for line in BODY[:-1] for at in range(0, 48, 8)]
    pieces += [one[at : at + 24] for one in encoded for at in range(0, len(one) - 24, 4)]
    return [piece for piece in dict.fromkeys(pieces) if piece in text]
