"""One answer over one connection: whole, or not there yet, or `Broken`; nobody guesses."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.store import exchange
from bayou.store.exchange import READ, WRITE, Answer, Broken, Connection, read_answer

ERROR = 64 << 10
"""Bytes that the body of an answer may have which is no success; one of a PUT's success too."""

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(lambda text: f"x-{text}".encode())
VALUE = st.text("".join(map(chr, range(33, 127))), max_size=30).map(str.encode)
ERRORS = st.sampled_from([400, 403, 404, 409, 412, 429, 500, 503])


def lines(*headers: bytes, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((status, *headers, b"", b""))


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%X\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


@st.composite
def good(draw: st.DrawFn) -> tuple[bytes, int | None, Answer]:
    """An answer as it comes, how long it had to be, and what it means."""
    status = draw(st.one_of(st.just(200), ERRORS))
    headers = draw(st.dictionaries(TOKEN, VALUE, max_size=4))
    body = draw(st.binary(max_size=200))
    wanted = draw(st.sampled_from([None, len(body)])) if status == 200 else draw(st.sampled_from([None, 7]))
    pieces = draw(st.none() | st.lists(st.binary(min_size=1, max_size=40), max_size=5)) if status != 200 else None
    if pieces is None:
        headers[b"content-length"] = b"%d" % len(body)
    else:
        headers[b"transfer-encoding"] = draw(st.sampled_from([b"chunked", b"Chunked"]))
        body = b"".join(pieces)
    named = [name.title() if draw(st.booleans()) else name for name in headers]
    head = lines(
        *(b"%s: %s" % (name, value) for name, value in zip(named, headers.values(), strict=True)),
        status=b"HTTP/1.1 %d Whatever it is called" % status,
    )
    return head + (body if pieces is None else chunked(pieces)), wanted, Answer(status, headers, body)


@given(good(), st.data())
def test_an_answer_is_the_same_however_it_is_cut(made: tuple[bytes, int | None, Answer], data: st.DataObject) -> None:
    wire, wanted, meant = made
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=8)))
    came = bytearray()
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        came += wire[begin:end]
        answer = read_answer(came, wanted)
        assert answer == (meant if end == len(wire) else None)


@given(good(), st.binary(min_size=1, max_size=20))
def test_whatever_follows_an_answer_makes_it_none(made: tuple[bytes, int | None, Answer], more: bytes) -> None:
    wire, wanted, _ = made
    with pytest.raises(Broken):
        read_answer(bytearray(wire + more), wanted)


@given(good(), st.integers(0, 300))
def test_a_success_of_another_length_than_wanted_is_none(made: tuple[bytes, int | None, Answer], other: int) -> None:
    wire, _, meant = made
    if meant.status != 200 or other == len(meant.body):
        assert read_answer(bytearray(wire), other) == meant, "an error may have any length"
    else:
        with pytest.raises(Broken):
            read_answer(bytearray(wire), other)


def test_headers_are_found_by_their_name_in_lower_case() -> None:
    answer = read_answer(bytearray(lines(b'ETAG:  "a:b" ', b"Content-Length: 0")), None)
    assert answer is not None
    assert (answer.text(b"etag"), answer.text(b"x-amz-version-id")) == ('"a:b"', None)


REFUSED = lines(b"Transfer-Encoding: chunked", status=b"HTTP/1.1 403 Forbidden")
MALFORMED: dict[str, bytes] = {
    "an older protocol": lines(b"Content-Length: 0", status=b"HTTP/1.0 200 OK"),
    "a newer protocol": lines(b"Content-Length: 0", status=b"HTTP/2 200 OK"),
    "another protocol": lines(b"Content-Length: 0", status=b"ICY 200 OK"),
    "a status of two digits": lines(b"Content-Length: 0", status=b"HTTP/1.1 20 OK"),
    "a status of four digits": lines(b"Content-Length: 0", status=b"HTTP/1.1 2000 OK"),
    "no status": lines(b"Content-Length: 0", status=b"HTTP/1.1 OK"),
    "no status line": lines(b"Content-Length: 0", status=b"Server: weed"),
    "nothing": b"\r\n\r\n",
    **{
        f"status {status}": lines(b"Content-Length: 0", status=b"HTTP/1.1 %d X" % status)
        for status in (100, 101, 102, 103, 199, 204, 205, 206, 304, 0)
    },
    "no length": lines(b"Server: weed"),
    "no headers": lines(),
    "two lengths": lines(b"Content-Length: 0", b"content-length: 0"),
    "two lengths in one": lines(b"Content-Length: 0, 0"),
    "a negative length": lines(b"Content-Length: -1"),
    "a length with a sign": lines(b"Content-Length: +1") + b"x",
    "an empty length": lines(b"Content-Length:"),
    "a length in words": lines(b"Content-Length: none"),
    "a length in other digits": lines(b"Content-Length: \xd9\xa1") + b"x",
    "length and chunks": lines(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "another coding": lines(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "two codings": lines(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "two ETags": lines(b"ETag: 1", b"ETag: 2", b"Content-Length: 0"),
    "a header without a colon": lines(b"Server", b"Content-Length: 0"),
    "a header without a name": lines(b": weed", b"Content-Length: 0"),
    "a space before the colon": lines(b"Content-Length : 0"),
    "a header that goes on": lines(b"Server: weed", b" of: the sea", b"Content-Length: 0"),
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 6000,
    "a line without an end": b"HTTP/1.1 200 " + b"y" * 40_000,
    "a long error": lines(b"Content-Length: %d" % (ERROR + 1), status=b"HTTP/1.1 500 No"),
    "a long success that nobody waits for": lines(b"Content-Length: %d" % (ERROR + 1)),
    "chunks without an end": REFUSED + b"400\r\n" + b"x" * 1024 + b"\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 64,
    "small chunks without an end": REFUSED + b"1\r\nx\r\n" * 20_000,
    "a chunk's length without an end": REFUSED + b"0" * (ERROR + 1),
    "a long chunk": REFUSED + b"10001\r\n",
    "a chunk of a negative length": REFUSED + b"-5\r\nhello\r\n0\r\n\r\n",
    "a chunk's length in words": REFUSED + b"five\r\nhello\r\n0\r\n\r\n",
    "an empty chunk's length": REFUSED + b"\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer than it says": REFUSED + b"4\r\nhello\r\n0\r\n\r\n",
    "a chunk that is shorter than it says": REFUSED + b"6\r\nhello\r\n0\r\n\r\n",
    "something after the last chunk": REFUSED + b"0\r\n\r\nmore",
    "a header after the last chunk": REFUSED + b"0\r\nX-Sum: 1\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_plainly_an_answer_is_broken(name: str) -> None:
    with pytest.raises(Broken) as caught:
        read_answer(bytearray(MALFORMED[name]), None)
    assert caught.value.sent, "whoever answered may have done what was asked"


@pytest.mark.parametrize("odd", [b"+5", b"0x5", b"0_5", b"-0", b" 5"])
def test_a_chunks_length_is_hexadecimal_digits_and_nothing_else(odd: bytes) -> None:
    body = b"" if odd == b"-0" else b"hello\r\n0\r\n"
    with pytest.raises(Broken):
        read_answer(bytearray(REFUSED + odd + b"\r\n" + body + b"\r\n"), None)


@pytest.mark.parametrize("wanted", [5, None])
def test_a_success_in_chunks_is_taken_only_where_its_length_does_not_matter(wanted: int | None) -> None:
    wire = bytearray(lines(b"Transfer-Encoding: chunked") + chunked([b"he", b"llo"]))
    if wanted is None:
        answer = read_answer(wire, None)
        assert answer is not None
        assert answer.body == b"hello"
    else:
        with pytest.raises(Broken):
            read_answer(wire, wanted)


def test_what_a_chunk_says_beyond_its_length_is_not_read() -> None:
    answer = read_answer(bytearray(REFUSED + b"5;why=not\r\nhello\r\n0\r\n\r\n"), None)
    assert answer is not None
    assert answer.body == b"hello"


def test_a_length_of_thousands_of_digits_is_broken_too() -> None:
    with pytest.raises(Broken):
        read_answer(bytearray(lines(b"Content-Length: " + b"1" * 5000)), None)


def test_a_long_head_is_broken_however_it_is_cut() -> None:
    with pytest.raises(Broken):
        read_answer(bytearray(lines(b"X: " + b"y" * (64 << 10), b"Content-Length: 0")), None)


PARTS = st.sampled_from(
    b"HTTP/1.1 200 OK|HTTP/1.1 403 X|\r\n|\r\n\r\n|Content-Length: 3|Transfer-Encoding: chunked|ETag: x"
    b"|:|;|3|0|abc|-1|FFFF|\n|\0| ".split(b"|")
)
BYTES = st.binary(max_size=300) | st.lists(PARTS | st.binary(max_size=4), max_size=24).map(b"".join)


@given(BYTES, st.none() | st.just(3))
@example(b"HTTP/1.1 403 X\r\nTransfer-Encoding: chunked\r\n\r\n\xff\r\n", None)
def test_no_bytes_do_any_harm(wire: bytes, wanted: int | None) -> None:
    try:
        answer = read_answer(bytearray(wire), wanted)
    except Broken:
        return
    assert answer is None or wire.startswith(b"HTTP/1.1 %d" % answer.status)


@given(good(), st.data())
def test_a_good_answer_with_one_byte_changed_does_no_harm(
    made: tuple[bytes, int | None, Answer], data: st.DataObject
) -> None:
    wire, wanted, _ = made
    changed = bytearray(wire)
    changed[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_answer(changed, wanted)
    except Broken:
        pass


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connected(door: socket.socket) -> tuple[Connection, socket.socket]:
    connection = Connection(socket.AF_INET, door.getsockname(), None, "127.0.0.1")
    return connection, door.accept()[0]


def wait_for(connection: Connection) -> Answer:
    while (answer := connection.go_on()) is None:
        pass
    return answer


def test_a_connection_that_was_closed_says_whether_anything_was_sent(door: socket.socket) -> None:
    connection, server = connected(door)
    assert connection.begin(b"GET / HTTP/1.1\r\n\r\n", None) is None
    assert connection.go_on() is None
    assert connection.wants == READ
    server.close()
    with pytest.raises(Broken) as caught:
        wait_for(connection)
    connection.close()
    assert caught.value.sent


def test_an_answer_that_nobody_asked_for_is_none(door: socket.socket) -> None:
    connection, server = connected(door)
    with connection._socket, server:
        server.sendall(lines(b"Content-Length: 0"))
        with pytest.raises(Broken) as caught:
            wait_for(connection)
    assert not caught.value.sent


def test_an_idle_connection_that_takes_nothing_yet_waits_until_it_can_write(door: socket.socket) -> None:
    """As after an early refusal: the server has answered, and not read all of the request before."""
    connection, server = connected(door)
    with connection._socket, server:
        connection.wants = READ  # idle
        with suppress(BlockingIOError):
            while True:
                connection._socket.send(bytes(1 << 20))
        assert connection.begin(b"PUT / HTTP/1.1\r\n\r\n", None) is None
        assert connection.wants == WRITE


def test_no_file_left_for_a_connection_is_broken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(exchange.socket, "socket", none_left)
    with pytest.raises(Broken):
        Connection(socket.AF_INET, ("127.0.0.1", 9), None, "127.0.0.1")
