"""The process that owns a shared SeaweedFS: `python -m bayou_testing.keeper ROOT`.

Each user holds a connection to it. The kernel closes that when the user ends, in whatever way, so the number of
connections is a count of references that cannot be wrong; when the last one is gone, server and keeper end.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import tempfile
from pathlib import Path

from bayou_testing.seaweed import KEEPER_FILE, SeaweedServer

_FIRST_USER_WITHIN = 30.0


def keep(root: Path) -> None:
    """Start a server, tell every user that comes where it is, and end with the last of them."""
    with (
        tempfile.TemporaryDirectory(prefix="seaweed-", dir=root, ignore_cleanup_errors=True) as directory,
        SeaweedServer(Path(directory)) as server,
        socket.create_server(("127.0.0.1", 0), backlog=64) as door,
    ):
        partial = root / f"{KEEPER_FILE}.new"
        partial.write_text(json.dumps({"port": door.getsockname()[1]}))
        partial.replace(root / KEEPER_FILE)
        # The process that started this one reads its output to the end, and then knows that the file is there.
        _close_output()
        _receive(door, welcome=json.dumps({"port": server.port}).encode() + b"\n")


def detach() -> None:
    """Leave the process and the session of the user that started this; it must outlive the first one."""
    if os.fork():
        os._exit(0)
    os.setsid()


def _receive(door: socket.socket, welcome: bytes) -> None:
    """Welcome users; return when the last has gone, or when none ever came. Without a welcome, a user came too late."""
    users: set[socket.socket] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(door, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(None if users else _FIRST_USER_WITHIN):
                if key.fileobj is door:
                    user, _address = door.accept()
                    user.sendall(welcome)
                    selector.register(user, selectors.EVENT_READ)
                    users.add(user)
            for user in [user for user in users if _gone(user)]:
                selector.unregister(user)
                users.remove(user)
                user.close()
            if not users:
                return


def _gone(user: socket.socket) -> bool:
    """Whether the other side has closed: users never send anything."""
    try:
        return user.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _close_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    detach()
    keep(Path(sys.argv[1]))
