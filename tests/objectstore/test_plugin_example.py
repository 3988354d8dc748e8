"""The page about stores is true: its example is a good store, and its tables leave nothing out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bayou.core import errors
from bayou.core.errors import StoreError
from bayou.core.ids import ulid
from bayou.objectstore import open_store
from bayou.objectstore.transport import Transport
from bayou.objectstore.url import OPTIONS
from bayou_testing.contract import Connect, StoreContract
from tests.sync.conftest import Team

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
ENTRY_POINT = re.compile(r'\[project\.entry-points\."bayou\.stores"\]\n\s*(\w+) = "(\w+):(\w+)"')


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the example as a package that names its factory as the page says; return the scheme of its URLs."""
    named = ENTRY_POINT.search(PAGE)
    code = re.search(r"```python\n(.*?)```", section("A whole example"), re.DOTALL)
    assert named is not None
    assert code is not None
    scheme, module, factory = named.groups()
    place = tmp_path / "site-packages"
    facts = place / f"{module}-1.0.dist-info"
    facts.mkdir(parents=True)
    (place / f"{module}.py").write_text(code[1])
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[bayou.stores]\n{scheme} = {module}:{factory}\n")
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, module, raising=False)
    return scheme


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "objects").mkdir()
    return {"directory": str(tmp_path / "objects")}


class TestExample(StoreContract):
    keeps_attributes = False

    @pytest.fixture
    def connect(self, scheme: str, options: dict[str, str]) -> Connect:
        url = f"{scheme}://team/{ulid()}"
        # SQLite lets those who wait look again and again: two at a time wait least.
        return lambda namespace=None: open_store(url, namespace=namespace, options=options, concurrency=2)


def test_two_clones_share_what_they_write_through_the_example(
    scheme: str, options: dict[str, str], tmp_path: Path
) -> None:
    team = Team(tmp_path, f"{scheme}://team/project", options)
    one, two = team.clone("one"), team.clone("two")
    one.write("data/report/m/monthly/1/raw", "42 orders")
    one.sync()
    two.sync()
    two.write("files/answer", "seen")
    two.sync()
    one.sync()
    assert one.files == two.files == {"data/report/m/monthly/1/raw": b"42 orders", "files/answer": b"seen"}
    assert one.sync().engine == two.sync().engine == "fast"


def test_the_page_names_everything_that_a_transport_has() -> None:
    rows = re.findall(r"^\| `(\w+)[(`]", section("Write a store"), re.MULTILINE)
    assert set(rows) == {name for name in vars(Transport) if not name.startswith("_")}


def test_the_page_names_every_option_of_every_store() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Options"), re.MULTILINE)
    assert sorted(rows) == sorted((scheme, name) for scheme, names in OPTIONS.items() for name in names)


def test_the_page_names_every_error_of_a_store_and_whether_it_is_tried_again() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (yes|no|) ?\|", section("Errors"), re.MULTILINE)
    known = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StoreError)]
    assert {(code, name) for code, name, _ in rows} == {(kind.code, kind.__name__) for kind in known}
    again = {name for _, name, again in rows if again == "yes"}
    assert again == {kind.__name__ for kind in known if kind.retryable}
