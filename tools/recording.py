"""Record a user's first terminal session as a picture: docs/pictures/first-session.svg.

The commands really run, one after the other, in a terminal of their own in a new directory; what they print, colours
included, is what the picture shows. `python tools/recording.py` writes the file anew.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "first-session.svg"

SESSION = (
    "bayou init laptop && cd laptop",
    "bayou datastore setup file:///tmp/shared",
    "bayou model create host/linux web1",
    """echo '{"disk": 51}' | bayou data put web1 usage --tag env=prod""",
    """echo '{"disk": 58}' | bayou data put web1 usage --tag env=prod""",
    "bayou data list",
    """bayou data query 'tags.env == "prod"' --select '{"version": version, "disk": attributes.disk}'""",
    "cd .. && bayou init server && cd server",
    "bayou datastore setup file:///tmp/shared",
    "bayou data get web1 usage",
    "bayou datastore verify",
)
"""What the user types. `/tmp/shared` stands for a directory that the recording makes."""

WIDTH = 96

# As rich's own, without the fonts that it loads from elsewhere.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px / {line_height}px ui-monospace, Menlo, Consolas, monospace }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class Typed:
    """A command and what the terminal showed."""

    def __init__(self, command: str, output: str) -> None:
        self.command = command
        self.output = output


def record(scratch: Path) -> list[Typed]:
    """Run the session in a directory; raise `RuntimeError` if a command fails."""
    (scratch / "shared").mkdir()
    (scratch / "home").mkdir()
    where = scratch
    typed = []
    for command in SESSION:
        real = command.replace("file:///tmp/shared", (scratch / "shared").as_uri())
        output, code = in_terminal(f"{real} && pwd > {scratch}/cwd", where, scratch / "home")
        if code != 0:
            raise RuntimeError(f"{command}: exit code {code}\n{output}")
        where = Path((scratch / "cwd").read_text().strip())
        typed.append(Typed(command, output.replace((scratch / "shared").as_uri(), "file:///tmp/shared")))
    for one in typed:
        one.output = one.output.replace(str(scratch.resolve()), "~").replace(str(scratch), "~")
    return typed


def in_terminal(command: str, directory: Path, home: Path) -> tuple[str, int]:
    """Run a shell command in a pseudo-terminal; return what it shows in the end, and its exit code."""
    ours, theirs = pty.openpty()
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**kept, "PATH": path, "HOME": str(home), "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "30"}
    with subprocess.Popen(
        ["bash", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=env
    ) as process:
        os.close(theirs)
        shown = bytearray()
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the last program has closed the terminal
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    return settled(shown.decode(errors="replace")), process.returncode


def settled(text: str) -> str:
    """Return what stays on the screen: no progress line that was drawn over, and only colours of its escapes."""
    text = re.sub(r"\x1b\[\?\d+[hl]|\x1b\[[\d;]*[A-HJ-Zf]", "", text.replace("\r\n", "\n"))
    lines = [re.split(r"\r|\x1b\[\d*K", line)[-1] for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


def picture(typed: list[Typed]) -> str:
    """Draw the session as SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for one in typed:
            console.print(Text.assemble(("$ ", "bold green"), (one.command, "bold")))
            if one.output:
                console.print(Text.from_ansi(one.output))
        svg = console.export_svg(title="a first session", theme=MONOKAI, code_format=_FORMAT, unique_id="bayou")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def commands_in(svg: str) -> str:
    """Return the text of a picture, with plain spaces."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    plain = "".join(texts).replace("&#160;", " ").replace("\xa0", " ")
    for code, sign in (("&#x27;", "'"), ("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        plain = plain.replace(code, sign)
    return plain


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        PICTURE.write_text(picture(record(Path(temporary))), encoding="utf-8")
