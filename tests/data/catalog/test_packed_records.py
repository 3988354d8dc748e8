"""A catalog of many records whose files came in packs: its requests are those of a pull, by the pack."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayou.data.catalog import Catalog
from bayou.data.engine import CatalogEngine
from bayou.objectstore import Store, keys
from bayou.sync.service import Datastore
from bayou_testing.proxy import HttpProxy
from tests.data.catalog.scene import VPC, files, metadata
from tests.packs.moving import in_packs, put_index
from tests.sync.conftest import Clone, Team

ITEMS = 10_000
PER_PACK = 2000


def fill(store: Store, count: int) -> None:
    """Give a store so many items of one version, each with its content and its metadata in a pack."""
    contents: dict[str, bytes] = {}
    for at in range(count):
        content = b'{"at": %d}' % at
        contents.update(files(metadata(VPC, f"n{at:05}", 1, size=len(content), sha256=None), content))
    put_index(store, in_packs(store, dict(sorted(contents.items())), PER_PACK))


def refresh(clone: Clone) -> int:
    """Bring the catalog up to date; return how many versions it has."""
    with (
        Datastore(clone.repo) as datastore,
        Catalog(datastore.connection, datastore.tree, CatalogEngine("point")) as catalog,
    ):
        catalog.refresh()
        return catalog.count_versions()


@pytest.mark.timeout(300)
def test_a_lazy_clone_of_ten_thousand_items_and_its_catalog_take_some_tens_of_requests(
    s3_team: Team, proxy: HttpProxy
) -> None:
    """A lazy tree has the metadata of every version, so the catalog reads the tree and asks the store for nothing."""
    fill(s3_team.store(), ITEMS)
    clone = s3_team.clone("lazy", hydrate="lazy")
    packs = -(-2 * ITEMS // PER_PACK)
    proxy.log.clear()

    clone.sync(mode="pull", engine="point")

    sent = proxy.log.rows()
    gets = [row for row in sent if row.method == "GET"]
    assert len([row for row in gets if f"/{keys.PACKS}/" in row.path]) == packs
    assert len(sent) <= packs + 60, "the other requests read the index"
    proxy.log.clear()
    assert refresh(clone) == ITEMS
    catalog = Path(clone.repo.catalog)
    for file in catalog.parent.glob(f"{catalog.name}*"):
        file.unlink()
    assert refresh(clone) == ITEMS, "from nothing"
    assert proxy.log.rows() == []
