"""The benchmarks are scripts beside each other, not a package: their modules are found in their folder."""

from __future__ import annotations

import sys
from pathlib import Path

# Last, so that no module of a benchmark takes the place of another one.
sys.path.append(str(Path(__file__).parents[2] / "bench"))
