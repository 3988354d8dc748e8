"""What a newcomer sees first must run as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_tells_its_story_to_the_end(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "run.py")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Done." in ran.stdout
