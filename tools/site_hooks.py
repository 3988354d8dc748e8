"""What mkdocs does besides rendering `docs/`: pages that are made from the program, and from files beside `docs/`.

The reference of the command line is made anew at each build, so that it is always that of this program. `CHANGELOG.md`
and `SECURITY.md` stay where every repository has them and appear as pages. A link to another file of the repository
that is no page becomes the name of that file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

import cli_reference  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

BESIDE = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
"""Pages of the site that are files of the repository's root."""

REFERENCE = "reference/command-line.md"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of `docs/`."""
    files.append(File.generated(config, REFERENCE, content=cli_reference.page()))
    for page, name in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links between files of the repository be links between pages of the site."""
    uri: str = page.file.src_uri
    folder = ROOT if uri in BESIDE else (ROOT / "docs" / uri).parent
    return _LINK.sub(lambda link: resolve(link, folder, uri), markdown)


def resolve(link: re.Match[str], folder: Path, uri: str) -> str:
    """Return a link as the site has it; a file that is no page is only named."""
    text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
    file = (folder / target).resolve()
    if "://" in target or not file.exists():
        return link.group()  # elsewhere, a generated page, or a mistake that mkdocs reports
    if file.is_dir() and (file / "README.md").exists():
        file /= "README.md"
    if file.is_relative_to(ROOT / "docs"):
        found = file.relative_to(ROOT / "docs").as_posix()
    else:
        name = file.relative_to(ROOT).as_posix()
        known = [page for page, beside in BESIDE.items() if beside == name]
        if not known:
            return f"`{name}`" if text.strip("`").endswith(name) else f"{text} (`{name}`)"
        (found,) = known
    return f"[{text}]({'../' * uri.count('/')}{found}{anchor})"
