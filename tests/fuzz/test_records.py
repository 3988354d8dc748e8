"""17.6 and 17.10: whatever a record or a definition says, no process dies of it, and no error is not one of ours (V25).

Thousands of inputs here, millions in `./dev soak`. The readers are fed in processes of their own (`records_inputs`), so
that a crash is a failed test; each has a limit of memory, and of time for one input.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.records_inputs import KINDS, SEEDS, Readers, made

FEW = 2_500
MANY = 500_000
_PER_PROCESS = 50_000


def feed(kind: str, seed: int, first: int, count: int) -> tuple[int, int]:
    """Feed the readers of a kind in a process of their own; return how often they read something, and refused it."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.records_inputs", kind, str(seed), str(first), str(count)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-5000:])
    read, refused = map(int, ran.stdout.split())
    return read, refused


@pytest.mark.parametrize("kind", KINDS)
def test_17_6_no_record_or_definition_is_the_end_of_a_process_or_an_error_that_is_not_ours(kind: str) -> None:
    read, refused = feed(kind, 0, 0, FEW)
    assert read
    assert refused


@pytest.mark.parametrize("kind", SEEDS)
def test_what_the_inputs_are_made_of_is_read(kind: str, tmp_path: Path) -> None:
    for reader in Readers(tmp_path).of(kind):
        reader(SEEDS[kind])


def test_an_input_is_made_again_from_its_numbers() -> None:
    assert [made("any", 7, number) for number in range(50)] == [made("any", 7, number) for number in range(50)]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_17_6_nor_is_one_of_millions(kind: str) -> None:
    seed = int(os.environ.get("BAYOU_TEST_SEED", random.randrange(10**6)))
    for first in range(0, MANY, _PER_PROCESS):
        feed(kind, seed, first, _PER_PROCESS)
