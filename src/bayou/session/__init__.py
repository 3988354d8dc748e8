"""One write session: lease, pull, body, exactly one push, release; and a repo that is open for programs."""

from bayou.session.open import Models, Repo
from bayou.session.session import Session, write_session

__all__ = ["Models", "Repo", "Session", "write_session"]
