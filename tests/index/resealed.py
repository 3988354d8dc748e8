"""Nodes whose bytes were changed, and whose seal says that they were not: what a writer who means harm would store."""

from __future__ import annotations

import random
from hashlib import sha256

MARK = b"bayou.sha256\x18\x40"


def resealed(data: bytes) -> bytes:
    """Return a node with a seal that is right for its bytes, if it has room for one."""
    at = data.rfind(MARK) + len(MARK)
    if at < len(MARK) or at + 64 > len(data):
        return data
    opened = data[:at] + b"0" * 64 + data[at + 64 :]
    return opened[:at] + sha256(opened).hexdigest().encode() + opened[at + 64 :]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a node with a few bytes changed, copied, dropped or put in, sealed anew.

    Half of the time in the footer, where the parser believes what it reads.
    """
    changed = bytearray(data)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        low = max(4, footer) if chance.random() < 0.6 else 4
        at = chance.randrange(low, len(changed) - 8)
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                changed[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)))
            case 3:
                changed[at : at + 8] = b"\xff" * 7 + b"\x7f"
            case 4:
                other = chance.randrange(4, len(changed) - 16)
                changed[at : at + 8] = changed[other : other + 8]
            case 5:
                length = chance.randrange(1, 9)
                if chance.random() < 0.5:
                    del changed[at : min(at + length, len(changed) - 8)]
                else:
                    changed[at:at] = chance.randbytes(length)
    return resealed(bytes(changed))
