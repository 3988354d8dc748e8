"""Many small requests to one server, by one thread over many connections.

A client that does everything takes more of a processor for a small object than the object itself is worth, and as many
threads as there are connections wake each other up for each. This one does little: requests come signed from those who
hold the credentials, and whatever is not plainly an answer is left to the ordinary way (`exchange`).
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from bayou.store.exchange import SUCCESS, Answer, Broken, Connection
from bayou.store.signature import Signed
from bayou.store.threads import within
from bayou.store.transport import Undone

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_LOOK_S = 0.1
"""How long nobody looks whether time is up, or somebody has cancelled."""

_LATE_S = 1.0
"""How long nobody looks for requests that have taken too long, while others are answered."""

_CONNECT_S = 5.0
_SIGNED = 64
"""Requests that are signed at once."""

_GIVE_UP = 8
"""Failures in a row after which this way is taken for closed."""

_ABSENT = 404
"""An answer like any other, to those who ask for what is not there."""

_IDLE_S = 15.0
"""Servers close connections that are idle, and what lies between may forget them without a word."""

AGENT = "bayou-many"
"""Who asks: so that whoever reads the log of a store can tell these requests from the ordinary ones."""

Method = Literal["GET", "PUT"]


class Order(NamedTuple, Generic[T]):
    """What to ask, and whom to tell: `wanted` is how many bytes a success must bring."""

    what: T
    key: str
    headers: str = ""
    body: bytes = b""
    wanted: int | None = None


Sign = Callable[[Method, Sequence[Order[Any]]], Sequence[Signed]]
"""Return how each order is asked for, by anybody and soon; raise `Broken` where that cannot be told."""


class _Server(NamedTuple):
    """Where all addresses of a lane lead."""

    origin: str
    host: str
    family: int
    address: tuple[object, ...]
    tls: ssl.SSLContext | None


class Lane:
    """The connections; for one thread at a time. `closed`: it is of no use any more."""

    def __init__(self, sign: Sign, connections: int, timeout: float) -> None:
        self._sign = sign
        self._most = connections
        self._timeout = timeout
        self._selector = selectors.DefaultSelector()
        self._idle: list[Connection] = []
        self._server: _Server | None = None
        self._used = 0.0
        self._failures = 0
        self.closed = False
        self.proved = False
        """Whether any request has succeeded: until then, what is refused may be this way of asking."""

    def send(
        self, method: Method, orders: Iterator[Order[T] | None], look: Callable[[], object]
    ) -> Iterator[tuple[T, Answer | Undone] | None]:
        """Yield what became of each order that was taken; all of them, unless the lane is `closed` before.

        For None among the orders None is yielded at once: so whoever gives the orders can look around. `look` is called
        now and then, and may raise. Whoever wants no more closes this.
        """
        look()
        self._wake()
        busy: dict[Connection, T] = {}
        ready: deque[tuple[Order[T], str, str]] = deque()
        looked = time.monotonic()
        try:
            while True:
                while len(busy) < self._most:
                    more = yield from self._begin(method, orders, ready, busy)
                    if not more:
                        break
                if not busy:
                    break
                events = self._selector.select(_LOOK_S)
                look()
                for key, _ in events:
                    connection: Connection = key.data
                    if connection in busy:
                        found = self._go_on(connection)
                        if found is not None:
                            what = busy.pop(connection)
                            # Before anybody hears of it: while they listen, the server has something to do.
                            yield from self._begin(method, orders, ready, busy)
                            yield what, found
                    else:
                        self._drop(connection)  # nobody asked it anything: it was closed, or speaks out of turn
                if not events or time.monotonic() > looked + _LATE_S:
                    yield from self._expired(busy)
                    looked = time.monotonic()
            yield from ((order.what, Undone.UNSENT) for order, _, _ in ready)
        finally:
            for connection in busy:
                self._drop(connection)
            self._used = time.monotonic()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._drop(key.data)
        self._selector.close()

    def _wake(self) -> None:
        """Forget connections that are too old to be trusted, or that the server has closed."""
        if time.monotonic() - self._used > _IDLE_S:
            for connection in self._idle.copy():
                self._drop(connection)
        elif self._idle:
            for key, _ in self._selector.select(0):
                self._drop(key.data)

    def _begin(
        self,
        method: Method,
        orders: Iterator[Order[T] | None],
        ready: deque[tuple[Order[T], str, str]],
        busy: dict[Connection, T],
    ) -> Generator[tuple[T, Undone] | None, None, bool]:
        """Take an order and send it; tell if that cannot be done. Return whether there may be more to take."""
        if self.closed:
            return False
        if not ready:
            taken: list[Order[T]] = []
            for next_one in islice(orders, _SIGNED):
                if next_one is None:
                    yield None
                    break
                taken.append(next_one)
            else:
                if not taken:
                    return False
            if not taken:
                return True
            try:
                ready.extend(self._requests(method, taken))
            except Broken:
                self.closed = True
                yield from ((order.what, Undone.UNSENT) for order in taken)
                return False
        order, target, proof = ready.popleft()
        connection = None
        try:
            connection = self._idle.pop() if self._idle else self._open()
            if connection.begin(self._request(method, target, proof, order), order.wanted) is not None:
                raise Broken("an answer before its time")
        except Broken as broken:
            self._failed(connection)
            yield order.what, Undone.LOST if broken.sent else Undone.UNSENT
        else:
            self._watch(connection)
            busy[connection] = order.what
        return True

    def _go_on(self, connection: Connection) -> Answer | Undone | None:
        try:
            answer = connection.go_on()
        except Broken as broken:
            self._failed(connection)
            return Undone.LOST if broken.sent else Undone.UNSENT
        if answer is None:
            self._watch(connection)
            return None
        if answer.status == SUCCESS and b"etag" in answer.headers:
            self._failures, self.proved = 0, True
        elif answer.status != _ABSENT or not self.proved:
            self._count_failure()
        if answer.headers.get(b"connection", b"").lower() == b"close":
            self._drop(connection)
        else:
            self._idle.append(connection)
        return answer

    def _expired(self, busy: dict[Connection, T]) -> Iterator[tuple[T, Undone]]:
        before = time.monotonic() - self._timeout
        for connection in [one for one in busy if one.begun < before]:
            self._failed(connection)
            yield busy.pop(connection), Undone.LOST if connection.sent else Undone.UNSENT

    def _failed(self, connection: Connection | None) -> None:
        self._count_failure()
        if connection is not None:
            self._drop(connection)

    def _count_failure(self) -> None:
        self._failures += 1
        self.closed = self.closed or self._failures >= _GIVE_UP

    def _watch(self, connection: Connection) -> None:
        """Wait for what a connection wants."""
        if connection.watched == connection.wants:
            return
        change = self._selector.modify if connection.watched else self._selector.register
        change(connection, connection.wants, connection)
        connection.watched = connection.wants

    def _drop(self, connection: Connection) -> None:
        if connection.watched:
            self._selector.unregister(connection)
            connection.watched = 0
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()

    def _requests(self, method: Method, orders: Sequence[Order[T]]) -> list[tuple[Order[T], str, str]]:
        """Return where each request goes, on the one server, and what authorises it."""
        signed = self._sign(method, orders)
        if self._server is None:
            self._server = _find(signed[0].address, self._timeout)
        origin = self._server.origin
        if any(not one.address.startswith(f"{origin}/") for one in signed):
            raise Broken("addresses of several servers", sent=False)
        return [(order, one.address[len(origin) :], one.headers) for order, one in zip(orders, signed, strict=True)]

    def _open(self) -> Connection:
        server = self._server
        assert server is not None
        return Connection(server.family, server.address, server.tls, server.host)

    def _request(self, method: Method, target: str, proof: str, order: Order[T]) -> bytes:
        server = self._server
        assert server is not None
        host = server.origin.partition("://")[2]
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {AGENT}\r\n{order.headers}{proof}\r\n"
        return head.encode("ascii") + order.body


def _find(address: str, timeout: float) -> _Server:
    """Connect to the server of an address once: of several places that it may have, one that answers is taken."""
    scheme, _, rest = address.partition("://")
    netloc = rest.partition("/")[0]
    name, _, port = netloc.rpartition(":") if netloc.rpartition(":")[2].isdigit() else (netloc, "", "")
    host = name.strip("[]")
    secure = scheme == "https"
    try:
        number = int(port) if port else 443 if secure else 80
        patience = min(_CONNECT_S, timeout)
        # Nobody else bounds how long the look-up of a name takes (V12).
        found = within(2 * patience, partial(socket.create_connection, (host, number), patience))
        with found:
            family, place = found.family, found.getpeername()
        tls = None
        if secure:
            import ssl  # noqa: PLC0415  (20 ms, and most of the time loaded in vain)

            tls = ssl.create_default_context()
    except (OSError, ValueError) as error:
        raise Broken(str(error), sent=False) from None
    return _Server(f"{scheme}://{netloc}", host, family, place, tls)
