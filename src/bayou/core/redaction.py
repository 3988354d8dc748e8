"""Redaction: keep secrets out of everything that Bayou records, logs or prints (V26).

A secret takes many forms on its way into a text: a program prints it line by line, `repr` and JSON escape it, a URL
quotes it, `base64` encodes and wraps it, Bayou's own messages collapse its white space. A `Redactor` recognises these
forms of each of its secrets, and also private keys in PEM, whatever their value. Callers redact the whole text first,
and collapse, truncate or escape it afterwards.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

REDACTED = "***"

SHORTEST = 4
"""A shorter secret is replaced only if it is a whole value: `a` occurs in too many words."""
SHORTEST_PRINTED = 8
"""The same for the output and results of programs: `prod` and `true` are values of the environment, too."""

_LINE = 8
"""A shorter line of a secret is replaced only beside another line of it."""
_MIN_CREDENTIAL = 12
"""No credential of a provider is shorter."""
_SHINGLE, _ENCODED, _WIDE = 12, 8, 24
"""Base64: the length of a shingle, the shortest text to search for, and the shortest to search for in shingles."""
_MAX_KEY = 32 << 10
"""The maximum length of a private key."""
_MAX_HELD = 64 << 10
"""How much of a stream a `StreamRedactor` holds back at most, besides the longest secret."""

_AROUND = """'",+>|"""


def _gap(follows: str = "") -> str:
    """Return the pattern of what may replace white space of a secret: other white space, escaped or not, and quotes.

    The group is atomic, because backtracking would take exponential time on a text that nearly matches. So it must not
    consume the character that `follows`.
    """
    around = _AROUND.replace(follows, "") if follows else _AROUND
    escapes = r"\\{1,8}[nrtfv]|(?i:\\{1,8}(?:u00|x)(?:0[9a-d]|20)|%(?:25)*(?:0[9a-d]|20))"
    return rf"(?>(?:{escapes}|\\{{1,8}}(?=[\s{around}])|[\s{around}]){{0,24}})"


_GAP = _gap()
_ONLY_GAP = re.compile(_GAP)
_CUT = re.compile(r"""(?:…|\.\.\.)?["'\s]*\Z""")

_BEGIN = re.compile(r"-----BEGIN[ +A-Z0-9%]{1,40}PRIVATE(?:[ +]|%20)KEY(?:(?:[ +]|%20)BLOCK)?-----")
_END = re.compile(r"-----END[ +A-Z0-9%]{1,40}PRIVATE(?:[ +]|%20)KEY(?:(?:[ +]|%20)BLOCK)?-----")
_KEY_TEXT = re.compile(r"[A-Za-z0-9+/=\s\\%'\",:.>|-]*")
_ENCODED_BEGIN = "LS0tLS1CRUdJTi"
_ENCODED_KEY = re.compile(
    r"LS0tLS1CRUdJTi[\w+/-]{40,}(?:(?:\s|\\+[nr]){1,4}[\w+/-]{40,})*(?:(?:\s|\\+[nr]){1,4}[\w+/-]+=)?={0,2}", re.ASCII
)
_LONGEST_BEGIN = 80
_KEY_BEGUN = re.compile(r"-{1,4}\Z|-----(?:B(?:E(?:G(?:I(?:N[ +A-Z0-9%]{0,60}-{0,5})?)?)?)?)?\Z")
_ESCAPE_BEGUN = re.compile(r"""[\\%'"][\\%'"0-9A-Za-z]{0,12}\Z""")
_LAST_RUN = re.compile(r"[A-Za-z0-9+/_-]+\Z")
_RUN = re.compile(rf"[A-Za-z0-9+/]{{{_SHINGLE},}}")
_WORD = re.compile(r"[A-Za-z0-9]+")
_CHARACTERS = re.compile(r"\\+|.", re.DOTALL)

_PROVIDER = re.compile(
    r"(?:AWS|AZURE|ARM|GOOGLE|GCP|GCS|CLOUDSDK)_\w*?"
    r"(?:SECRET|TOKEN|PASSWORD|SAS|CREDENTIALS|CONNECTION_STRING|(?<!PUBLIC_)KEY)(?!\w*_(?:ID|FILE|PATH|URI|URL|NAME)$)\w*"
)
_SETTING = re.compile(r"(?i)(?:key|signature|password|secret|token)=([^;&]+)")


class Span(Struct, frozen=True):
    """A part of a text to redact. `part`: a secret of several lines may continue after it."""

    start: int
    end: int
    part: bool = False


class _Form(Struct, frozen=True):
    """The pattern of a secret, or of a line of it, in a text. Every variant contains `anchor` literally."""

    anchor: str
    pattern: re.Pattern[str]
    beginning: re.Pattern[str]
    elements: tuple[str, ...]
    part: bool


class Redactor:
    """Replaces secrets by `***`. Threads may share a redactor."""

    def __init__(self, secrets: Iterable[str], shortest: int = SHORTEST) -> None:
        known = {part for secret in secrets for part in _with_parts(secret)}
        self._whole = frozenset(secret for secret in known if secret)
        long = sorted((secret for secret in known if len(secret.strip()) >= shortest), key=len, reverse=True)
        self._forms = [form for secret in long for form in _forms(secret)]
        self._encoded: set[str] = set()
        self._shingles: set[str] = set()
        self._base64_of = [text for secret in long for text in _base64_texts(secret)]
        for text in self._base64_of:
            if len(text) < _WIDE:
                self._encoded.add(text)
            else:
                self._shingles.update(text[at : at + _SHINGLE] for at in range(len(text) - _SHINGLE + 1))
        self.longest = max([_MAX_KEY, *(6 * len(secret) for secret in long)])
        """No form of a secret is longer, unless it is escaped many times over."""

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if text in self._whole:
            return REDACTED
        return replaced(text, self.spans(text))

    def value(self, value: Any) -> Any:
        """Return a value whose texts and keys contain no secret; replace a number whose text is a secret."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.value(key): self.value(item) for key, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
            case bool() | None:
                return value
        return REDACTED if str(value) in self._whole else value

    def stream(self) -> StreamRedactor:
        """Return a redactor for a stream of bytes."""
        return StreamRedactor(self)

    def spans(self, text: str) -> list[Span]:
        """Return the spans of a text to redact, in order, without overlaps."""
        found = [*self._forms_in(text), *_private_keys(text)]
        if self._encoded or self._shingles:
            found += self._base64_in(text)
        return _merged(found, text)

    def unfinished(self, text: str) -> int:
        """Return where a secret may begin that ends beyond the text; the text's length if there is none."""
        at = min((_form_start(form, text) for form in self._forms), default=len(text))
        if begun := _KEY_BEGUN.search(text, max(0, len(text) - _LONGEST_BEGIN)):
            at = min(at, begun.start())
        open_key = text.rfind("-----BEGIN")
        if open_key >= 0 and _BEGIN.match(text, open_key) and not _END.search(text, open_key):
            at = min(at, open_key)
        if run := _LAST_RUN.search(text, max(0, len(text) - _WIDE)):
            last = run.group().replace("-", "+").replace("_", "/")
            if _ENCODED_BEGIN.startswith(last) or any(last in encoded for encoded in self._base64_of):
                at = min(at, run.start())
        return at

    def _forms_in(self, text: str) -> Iterator[Span]:
        for form in self._forms:
            if form.anchor in text:
                for match in form.pattern.finditer(text):
                    yield Span(match.start(), match.end(), form.part)
            yield from _cut_off(form, text)

    def _base64_in(self, text: str) -> Iterator[Span]:
        """Find base64 of a secret, at any of its three alignments, in either alphabet, and wrapped into lines."""
        plain = text.replace("-", "+").replace("_", "/")
        for encoded in self._encoded:
            at = plain.find(encoded)
            while at >= 0:
                yield Span(at, at + len(encoded))
                at = plain.find(encoded, at + 1)
        if not self._shingles:
            return
        for run in _RUN.finditer(plain):
            start, end = run.span()
            at = start
            while at <= end - _SHINGLE:
                if plain[at : at + _SHINGLE] not in self._shingles:
                    at += _SHINGLE  # a match that is long enough covers a whole shingle
                    continue
                first, last = at, at
                while first > start and plain[first - 1 : first - 1 + _SHINGLE] in self._shingles:
                    first -= 1
                while last < end - _SHINGLE and plain[last + 1 : last + 1 + _SHINGLE] in self._shingles:
                    last += 1
                # The characters beside the match share bits with the secret, so they belong to it.
                yield Span(max(start, first - 3), min(end, last + _SHINGLE + 3), part=True)
                at = last + _SHINGLE


class StreamRedactor:
    """Redacts a stream of bytes; it holds back only what may be the beginning of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """Take the next bytes, and return those that can be output by now."""
        self._held += data
        whole = _decoded(self._held[: len(self._held) - _unfinished_bytes(self._held)])
        rest = self._held[len(_bytes(whole)) :]
        full = len(whole) > _MAX_HELD + 2 * self._redactor.longest
        spans = self._redactor.spans(whole)
        # When the buffer is full, the redactor keeps more than the longest secret, so a secret that began stays whole.
        cut = len(whole) - self._redactor.longest if full else self._redactor.unfinished(whole)
        for span in reversed(spans):
            goes_on = span.part and not full and span.end <= cut and _ONLY_GAP.fullmatch(whole, span.end, cut)
            if span.start < cut < span.end or goes_on:
                cut = span.start
        redacted = replaced(whole[:cut], [Span(span.start, min(span.end, cut)) for span in spans if span.start < cut])
        self._held = _bytes(whole[cut:]) + rest
        return _bytes(redacted)

    def close(self) -> bytes:
        """Return the redacted rest at the end of the stream."""
        text, self._held = _decoded(self._held), b""
        return _bytes(replaced(text, self._redactor.spans(text)))


@lru_cache(maxsize=64)
def _redactor(secrets: frozenset[str], shortest: int) -> Redactor:
    return Redactor(secrets, shortest)


def redactor(secrets: Iterable[str] = (), shortest: int = SHORTEST) -> Redactor:
    """Return a redactor for these secrets and for the credentials in this process's environment."""
    return _redactor(frozenset(secrets) | own_credentials(), shortest)


def own_credentials(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the values of providers' variables whose names and values are those of secrets."""
    found = set()
    for name, value in (os.environ if environ is None else environ).items():
        is_path = name.endswith("CREDENTIALS") and not value.lstrip().startswith("{")
        if len(value) >= _MIN_CREDENTIAL and _PROVIDER.fullmatch(name) and not is_path:
            found.add(value)
    return frozenset(found)


def replaced(text: str, spans: Iterable[Span]) -> str:
    """Return a text with each span replaced by `***`."""
    redacted, at = "", 0
    for span in spans:
        redacted += text[at : span.start] + REDACTED
        at = span.end
    return redacted + text[at:]


def _with_parts(secret: str) -> Iterator[str]:
    """Yield a secret and the secrets inside it: the key of a connection string or of a service account."""
    yield secret
    if ";" in secret or "&" in secret:
        yield from (found for found in _SETTING.findall(secret) if len(found) >= _MIN_CREDENTIAL)
    if secret.lstrip().startswith("{"):
        import json  # noqa: PLC0415  (rarely needed)

        try:
            fields = json.loads(secret)
        except (ValueError, RecursionError):
            return
        for name, value in fields.items():
            if (
                isinstance(value, str)
                and len(value) >= _MIN_CREDENTIAL
                and re.search("(?i)key|secret|token|password", name)
            ):
                yield value


def _forms(secret: str) -> Iterator[_Form]:
    """Yield the forms of a secret: the whole, and each of its lines together with short lines beside it."""
    yield _form(secret, part=False)
    lines = [line.strip() for line in secret.splitlines() if line.strip()]
    if len(lines) < 2:
        return
    for at, line in enumerate(lines):
        if len(line) >= _LINE:
            yield _form(
                line, part=True, before=_leading_short(reversed(lines[:at])), after=_leading_short(lines[at + 1 :])
            )


def _leading_short(lines: Iterable[str]) -> list[str]:
    """Return the first lines up to one that is long enough to be a form by itself."""
    found: list[str] = []
    for line in lines:
        if len(line) >= _LINE:
            break
        found.append(line)
    return found


def _form(text: str, *, part: bool, before: Iterable[str] = (), after: Iterable[str] = ()) -> _Form:
    elements = tuple(_elements(text))
    pattern, first = "".join(elements), text.strip()[0]
    for line in before:
        pattern = f"(?:{''.join(_elements(line))}{_gap(first)})?{pattern}"
        first = line[0]
    for line in after:
        pattern = f"{pattern}(?:{_gap(line[0])}{''.join(_elements(line))})?"
    anchor = max(_WORD.findall(text), key=len, default="")
    return _Form(anchor, re.compile(pattern), re.compile("".join(elements[:_LINE])), elements, part)


def _elements(text: str) -> Iterator[str]:
    """Yield a pattern for each character of a text, which matches the character plain and escaped."""
    first = True
    for word in text.split():
        if not first:
            yield _gap(word[0])
        first = False
        yield from map(_element, _CHARACTERS.findall(word))


@lru_cache(maxsize=1024)
def _element(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    if char[0] == "\\":  # match all adjacent backslashes at once: single ones would match in too many ways
        count = len(char)
        return rf"(?:\\{{{count},{8 * count}}}|(?i:%(?:25)*5c|\\{{1,8}}(?:u00|x)5c){{{count}}})"
    octets = char.encode("utf-8", "surrogatepass")
    units = char.encode("utf-16-be", "surrogatepass").hex()
    ways = [
        "".join(f"%(?:25)*{octet:02x}" for octet in octets),
        "".join(rf"\\{{1,8}}u{units[at : at + 4]}" for at in range(0, len(units), 4)),
        "".join(rf"\\{{1,8}}x{octet:02x}" for octet in octets),
        rf"\\{{1,8}}U{ord(char):08x}",
    ]
    if ord(char) < 256:
        ways.append(rf"\\{{1,8}}x{ord(char):02x}")
    quoted = r"""'(?:\\'|"'")'|""" if char == "'" else ""
    return rf"(?:{quoted}(?i:{'|'.join(ways)})|\\{{0,8}}{re.escape(char)})"


@lru_cache(maxsize=1024)
def _compiled(element: str) -> re.Pattern[str]:
    return re.compile(element)


def _cut_off(form: _Form, text: str) -> Iterator[Span]:
    """Find the beginning of a secret at the end of a text that another layer has truncated."""
    need = max(_LINE, len(form.elements) // 4)
    tail = max(0, len(text) - 8 * len(form.elements))
    for begun in form.beginning.finditer(text, tail):
        end, met = begun.start(), 0
        for element in form.elements:
            match = _compiled(element).match(text, end)
            if match is None or end == len(text):
                break
            end, met = match.end(), met + 1
        if met >= need and _CUT.match(text, end):
            yield Span(begun.start(), end, part=True)


def _form_start(form: _Form, text: str) -> int:
    """Return where a form may begin that ends beyond the text; the text's length if there is none."""
    tail = max(0, len(text) - 8 * len(form.elements))
    near = max(tail, len(text) - _LINE * _LINE)
    starts: list[int] = [match.start() for match in form.beginning.finditer(text, tail)]
    starts += range(near, len(text))
    for at in starts:
        end = at
        for element in form.elements:
            match = _compiled(element).match(text, end)
            if match is None:
                break
            end = match.end()
            if end == len(text):
                return at
        if end > at or at >= near:
            escape = _ESCAPE_BEGUN.match(text, end)
            if escape is not None and match is None:
                return at
    return len(text)


def _base64_texts(secret: str) -> Iterator[str]:
    """Yield the base64 of a secret inside a longer text, independent of what surrounds it, at each alignment."""
    plain = secret.strip()
    variants = {plain, plain.replace("\r\n", "\n"), plain.replace("\r\n", "\n").replace("\n", "\r\n")}
    for variant in variants:
        data = variant.encode("utf-8", "surrogateescape")
        for offset, mixed in ((0, 0), (1, 2), (2, 3)):
            encoded = base64.b64encode(bytes(offset) + data).decode().rstrip("=")[mixed:]
            if (offset + len(data)) % 3:
                encoded = encoded[:-1]
            if len(encoded) >= _ENCODED:
                yield encoded


def _private_keys(text: str) -> Iterator[Span]:
    """Find private keys in PEM, also escaped, collapsed or truncated, and their base64."""
    at = text.find("-----BEGIN")
    while at >= 0:
        begin = _BEGIN.match(text, at)
        if begin is not None:
            end = _END.search(text, begin.end(), begin.end() + _MAX_KEY)
            if end is not None:
                yield Span(at, end.end())
            else:
                body = _KEY_TEXT.match(text, begin.end(), begin.end() + _MAX_KEY)
                yield Span(at, body.end() if body else begin.end())
        at = text.find("-----BEGIN", begin.end() if begin else at + 10)
    if _ENCODED_BEGIN in text:
        for match in _ENCODED_KEY.finditer(text):
            head = re.sub(r"[^A-Za-z0-9+/]", "", match.group().replace("-", "+").replace("_", "/"))[:64]
            if b"PRIVATE KEY" in base64.b64decode(head[: len(head) // 4 * 4]):
                yield Span(match.start(), match.end(), part=True)


def _merged(found: list[Span], text: str) -> list[Span]:
    """Sort spans, and merge those that overlap and those of adjacent lines of one secret."""
    merged: list[Span] = []
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        if merged:
            last = merged[-1]
            lines = last.part and span.part and _ONLY_GAP.fullmatch(text, last.end, max(span.start, last.end))
            if span.start < last.end or lines:
                part = span.part if span.end >= last.end else last.part
                merged[-1] = Span(last.start, max(last.end, span.end), part)
                continue
        merged.append(Span(span.start, min(span.end, len(text)), span.part))
    return merged


def _unfinished_bytes(data: bytes) -> int:
    """Return how many bytes at the end belong to an incomplete character."""
    for count in range(1, min(4, len(data) + 1)):
        octet = data[-count]
        if octet & 0xC0 != 0x80:
            wanted = 4 if octet >= 0xF0 else 3 if octet >= 0xE0 else 2 if octet >= 0xC0 else 1
            return count if wanted > count else 0
    return 0


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
