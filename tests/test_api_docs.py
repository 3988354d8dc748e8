"""The examples of docs/api.md run as they stand there, in their order, in a fresh repo with a `file://` store."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs" / "api.md"
BLOCKS = re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def run_page(root: Path, *, spark: bool) -> dict[str, Any]:
    """Run the blocks of the page in the current directory; return what their variables are in the end."""
    names: dict[str, Any] = {}
    for kind, text in BLOCKS:
        if kind == "console":
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("$ bayou ").replace("/tmp/shared", str(root / "shared")))
                subprocess.run([sys.executable, "-m", "bayou", *words], cwd=root, check=True, capture_output=True)
        elif kind == "python" or (kind == "python spark" and spark):
            exec(compile(text, str(DOCS), "exec"), names)
        else:
            assert kind == "python spark", f"a block of no known kind: {kind}"
    return names


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)

    names = run_page(tmp_path, spark=False)

    assert sum(kind == "python" for kind, _ in BLOCKS) == 10
    assert names["output"].status == "succeeded"
    assert list((tmp_path / "laptop/.bayou/state/owners").iterdir()) == [], "the page closes what it opened"
