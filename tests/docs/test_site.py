"""The site builds in strict mode, loads nothing from elsewhere, and every link in it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import msgspec
import pytest

import bayou.config.load
from bayou.config.settings import DatastoreConfig, SparkConfig, SyncConfig
from bayou.core import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "tools"))

import cli_reference  # noqa: E402
import diagrams  # noqa: E402
import recording  # noqa: E402


class Page(HTMLParser):
    """A page's anchors, where it leads, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (href := values.get("href")):
            self.links.add(href)
        elif (
            tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect") and (href := values.get("href"))
        ):
            self.loaded.add(href)
        if src := values.get("src"):
            self.loaded.add(src)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # whose links are absolute, since it is shown anywhere
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in pages[target].anchors):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")

    assert len(pages) > 60
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc] == []
    drawn = [path.name for path in pages if re.search(r'class="[^"]*\bmermaid\b', path.read_text())]
    assert drawn == [], "the theme would fetch what draws it"
    pictures = "".join(path.read_text() for path in (DOCS / "pictures").iterdir())
    assert re.findall(r"url\(\W?http|href=\W?http", pictures) == []


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "command-line.html").read_text())
    contexts = [*cli_reference.commands()]

    assert len(contexts) > 40
    assert [context.command_path for context in contexts if context.command_path not in text] == []
    own = {
        name
        for context in contexts
        for option in context.command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    assert {name for name in own if name not in text} == set()


def relative_links(path: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```|`[^`]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield target.partition("#")[0]


def test_every_relative_link_of_the_repository_leads_to_a_file() -> None:
    """The pages are read in the repository too, where only the generated reference does not exist."""
    generated = {DOCS / "reference" / "command-line.md", DOCS / "security.md", DOCS / "changelog.md"}
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in [
            *ROOT.glob("*.md"),
            *DOCS.rglob("*.md"),
            *(ROOT / "testing").glob("*.md"),
            ROOT / "tests/failures.md",
        ]
        for target in relative_links(path)
        if not (found := (path.parent / target).resolve()).exists() and found not in generated
    ]

    assert broken == []


def test_every_page_that_code_cites_exists() -> None:
    cited = {
        (path, name)
        for folder in ("src", "tests", "testing", "bench", "demo", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/.-]+\.(?:md|svg)", path.read_text())
    }

    assert len(cited) > 5
    assert [f"{path.name}: {name}" for path, name in cited if not (ROOT / name).exists()] == []


def all_errors(base: type[errors.BayouError]) -> Iterator[type[errors.BayouError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_errors(child)


def test_every_error_code_has_a_row_with_cause_and_remedy() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", (DOCS / "errors.md").read_text(), re.MULTILINE))
    codes = {error.code for error in all_errors(errors.BayouError)}
    rendered = set(re.findall(r'RenderedError\(\s*"(\w+)"', (ROOT / "src/bayou/cli/errors.py").read_text()))

    assert rendered == {"internal", "os_error"}
    assert (codes | rendered) - set(rows) == set()
    assert [code for code, row in rows.items() if len(row.split(" | ")) != 2 or not all(row.split(" | "))] == []


def test_every_exit_code_is_explained() -> None:
    text = (DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \|", text, re.MULTILINE)
    explained = {int(code) for row in rows for code in row.split(", ")}

    assert {error.exit_code for error in all_errors(errors.BayouError)} <= explained


def test_the_page_of_the_configuration_has_every_key_with_its_default_and_variable() -> None:
    rows = {
        key: (default, variable)
        for key, default, variable in re.findall(
            r"^\| `([a-z_.]+)` \| (.*?) \| (.*?) \|", (DOCS / "configuration.md").read_text(), re.MULTILINE
        )
    }
    known = bayou.config.load._KNOWN
    keys = {f"{table}.{key}" for table in known if table for key in known[table]} | {"repo_id"}
    source = (ROOT / "src/bayou/config/load.py").read_text()

    assert set(rows) == keys
    structs = {"datastore": DatastoreConfig(), "sync": SyncConfig(), "spark": SparkConfig()}
    for key in keys - {"repo_id"}:
        table, name = key.split(".")
        value = getattr(structs[table], name)
        shown = {None: "none", (): "`[]`", "full": '`"full"`'}.get(value) if not isinstance(value, dict) else "`{}`"
        assert rows[key][0] == (shown or str(value)), key
    variables = set(re.findall(r"`(BAYOU_\w+)`", (DOCS / "configuration.md").read_text()))
    assert set(re.findall(r'"(BAYOU_[A-Z_]+)"', source)) <= variables
    everywhere = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert variables == set(re.findall(r'"(BAYOU_[A-Z_]+)"', everywhere))


def test_the_example_of_the_configuration_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", (DOCS / "configuration.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "bayou.toml").write_text(example)

    config = bayou.config.load.load_config(tmp_path / "bayou.toml", {})

    assert tomllib.loads(example)["sync"]["concurrency"] == config.sync.concurrency
    assert msgspec.structs.asdict(config.datastore)["hydrate"] == "lazy"


def test_the_pictures_are_those_that_the_script_draws() -> None:
    for name, text in diagrams.pictures().items():
        assert (DOCS / "pictures" / name).read_text() == text, "python tools/diagrams.py draws them anew"


def test_the_recorded_session_runs_and_the_picture_shows_its_commands(tmp_path: Path) -> None:
    typed = recording.record(tmp_path)
    shown = recording.commands_in((DOCS / "pictures" / "first-session.svg").read_text())
    squeezed = "".join(shown.split())

    assert [one.command for one in typed] == [*recording.SESSION]
    assert [one.command for one in typed if "".join(one.command.split()) not in squeezed] == []
    assert "version 2" in typed[4].output
    assert "all is well" in typed[-1].output
    assert str(tmp_path) not in recording.picture(typed)


def test_every_command_that_a_page_names_exists_with_its_options() -> None:
    known = {context.command_path: context.command for context in cli_reference.commands()}
    common = {"--help", "--json", "--repo", "--offline", "--quiet", "--verbose"}
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md")]
    wrong: list[str] = []
    named = 0
    for page in pages:
        for quoted, typed in re.findall(r"`(bayou [^`]*)`|^\$ (bayou .*)$", page.read_text(), re.MULTILINE):
            words = (quoted or typed).split()
            path = "bayou"
            while words[1:] and f"{path} {words[1]}" in known:
                path = f"{path} {words.pop(1)}"
            command = known.get(path)
            # `workflow run` is a command and a group: `workflow run NAME`, `workflow run get`.
            group = isinstance(command, click.Group) and path != "bayou workflow run"
            if command is None or (group and words[1:] and words[1].isalpha() and words[1].islower()):
                wrong += [f"{page.name}: {quoted or typed}"] if words[1:] and words[1].isalpha() else []
                continue
            named += 1
            options = common | {name for option in command.params for name in option.opts}
            if path != "bayou workflow run":
                given = {word.partition("=")[0].rstrip(",") for word in words if re.match("--[a-z]", word)}
                wrong += [f"{page.name}: {path} {name}" for name in given - options]

    assert named > 200
    assert wrong == []
