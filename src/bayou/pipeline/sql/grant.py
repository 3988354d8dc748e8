"""Leave for workers to read from the store, or why there is none; said only if somebody needs it."""

from __future__ import annotations

from msgspec import Struct

from bayou.core.errors import BayouError, RecordError
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.pipeline.stores import store_of
from bayou.repo import Repo


class Grant(Struct, frozen=True):
    """How to open the store; or `refused`, why that is not to be. It can be pickled."""

    recipe: StoreSpec | None = None
    refused: str = ""

    def open(self) -> Store:
        """Return this process's client of the store; `RecordError` where there is no leave to."""
        if self.recipe is None:
            raise RecordError(self.refused)
        return store_of(self.recipe)


def grant_for(repo: Repo) -> Grant:
    """Return what workers get. Credentials that cannot be had are a reason to refuse, and no error yet."""
    from bayou.pipeline.session import require_private_channel  # noqa: PLC0415  (workers, which get a Grant, need none)

    place = repo.config.datastore
    if place.url is None:
        return Grant(refused="there is no store to fetch it from")
    if repo.offline:
        return Grant(refused="this is offline")
    try:
        place.require_trust()
        recipe = StoreSpec.of(place.url, place.namespace, place.options, repo.config.sync.concurrency)
        require_private_channel(repo.config.spark, recipe)
        return Grant(recipe)
    except BayouError as error:
        return Grant(refused=f"{error.message}; {error.hint}" if error.hint else error.message)
