"""One write session: lease, pull, body, exactly one push, release; and a repo that is open for programs."""

from bayou.session.open import Models, OpenRepo
from bayou.session.session import Session, write_session

__all__ = ["Models", "OpenRepo", "Session", "write_session"]
