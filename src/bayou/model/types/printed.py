"""What a process prints, without secrets."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from bayou.model.work import Work


class Redacted:
    """Hands on what a process prints (`stdout` or `stderr`) once it is redacted; what was held back when it ends.

    V26: each stream is redacted by itself and before anything else happens to it: whoever cuts it, or mixes it with the
    other one, cuts and mixes what can be told.
    """

    def __init__(self, work: Work, hand_on: Callable[[str, bytes], None]) -> None:
        self._streams = {"stdout": work.redacting(), "stderr": work.redacting()}
        self._hand_on = hand_on

    def printed(self, stream: str, data: bytes) -> None:
        """Take what a process has printed."""
        if told := self._streams[stream].add(data):
            self._hand_on(stream, told)

    def __enter__(self) -> Redacted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, stream in self._streams.items():
            if told := stream.close():
                self._hand_on(name, told)
