"""The command `bayou`, and `python -m bayou`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Until it handles signals itself, Ctrl-C ends the process silently, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bayou.cli import main as run  # noqa: PLC0415  (80 ms, in which a user may press Ctrl-C)

    run()


if __name__ == "__main__":
    main()
