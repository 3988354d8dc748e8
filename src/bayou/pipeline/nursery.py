"""Spark's Python daemons, forked from a process that has loaded everything already.

Every session of a server has a daemon of its own, so that no worker ever serves two callers, and each would take half a
second to load what all of them need. So the first one leaves a copy of itself behind, before it has served anybody: the
nursery, which listens at a socket in the server's folder. Later ones hand it what Spark has given them (standard input,
output and errors, and the environment), and stay only to pass on signals and to be waited for.

The nursery ends with its server, when its code has changed on the disk, and when the socket leads to another one. Where
there is none, or none that answers, a daemon loads everything by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bayou.core.file_lock import is_locked
from bayou.pipeline.server.place import LONGEST_SOCKET, Place

_LOOK_S = 0.5
_ANSWER_S = 5.0
_LENGTH = struct.Struct("!I")
_MOST = 1 << 20
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def delegate(place: Place) -> bool:
    """Have the nursery fork a daemon in place of this process, and wait for its end; False if there is no nursery."""
    # A signal that comes before the daemon is known waits until it is.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWER_S)
        try:
            asked.connect(str(place.nursery))
            said = json.dumps(dict(os.environ)).encode()
            socket.send_fds(asked, [_LENGTH.pack(len(said))], [0, 1, 2])
            asked.sendall(said)
            daemon = _LENGTH.unpack(_read(asked, _LENGTH.size))[0]
            for number in _PASSED_ON:
                signal.signal(number, lambda number, _: _signal(daemon, number))
        except (OSError, EOFError, ValueError):
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _to_nowhere()  # Spark shall see these end with the daemon
        asked.settimeout(None)
        while asked.recv(1):
            pass
    return True


def found(place: Place, become: Callable[[], None]) -> None:
    """Leave a copy of this process behind as the nursery; its children `become` daemons. Returns at once."""
    if len(os.fsencode(place.nursery)) > LONGEST_SOCKET:
        return
    # By way of another process: a child of this one, which is to end once it has none, would keep it for good.
    between = os.fork()
    if between:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(between, 0)
        return
    status = 1
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        _to_nowhere()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for them
        _serve(place, become)
        status = 0
    finally:
        os._exit(status)


def _serve(place: Place, become: Callable[[], None]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        # Beside, then over what is there: whoever asks meets one nursery or another.
        name = place.nursery.with_name(f"{os.getpid()}.sock")
        listening.bind(str(name))
        listening.listen(16)
        mine = name.stat().st_ino
        os.replace(name, place.nursery)
        loaded = code()
        while is_locked(place.alive) and _inode(place.nursery) == mine:
            if not select.select([listening], [], [], _LOOK_S)[0]:
                continue
            asked, _ = listening.accept()
            with asked:
                if code() != loaded:
                    place.nursery.unlink(missing_ok=True)
                    return
                _fork(asked, listening, become)


def _fork(asked: socket.socket, listening: socket.socket, become: Callable[[], None]) -> None:
    """Fork a daemon for whoever asks; what comes half is nobody's."""
    asked.settimeout(_ANSWER_S)
    given: list[int] = []
    try:
        head, given, _, _ = socket.recv_fds(asked, _LENGTH.size, 3)
        size = _LENGTH.unpack(head)[0]
        environ = json.loads(_read(asked, size)) if size <= _MOST and len(given) == 3 else None
        if environ is not None and not os.fork():
            listening.close()
            _become(asked, given, environ, become)
    except (OSError, EOFError, ValueError, struct.error):
        pass
    finally:
        for descriptor in given:
            os.close(descriptor)


def _become(asked: socket.socket, given: list[int], environ: Mapping[str, str], become: Callable[[], None]) -> None:
    """Go on as the daemon that Spark has started; whoever waits for it sees `asked` close at its end."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, descriptor in enumerate(given):
            os.dup2(descriptor, place)
        os.environ.clear()
        os.environ.update(environ)
        asked.settimeout(None)
        asked.sendall(_LENGTH.pack(os.getpid()))
        become()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        os._exit(status)


def code() -> dict[str, tuple[int, int]]:
    """Return size and time of the files that this process has its own code from, as they are now."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and (name == "bayou" or name.startswith("bayou.")):
            with contextlib.suppress(OSError):
                stat = os.stat(file)
                found[file] = (stat.st_size, stat.st_mtime_ns)
    return found


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _to_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)
