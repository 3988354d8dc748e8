"""What a sync with nothing to do costs, as a whole command: one request, and no engine (V16)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from bayou_testing.proxy import HttpProxy
from tests.sync.conftest import Team

HEAVY = (
    *("pyspark", "pyarrow", "pandas", "numpy", "boto3", "botocore", "yaml", "rich", "celpy", "cel", "jsonschema"),
    *("tomlkit", "filelock", "asyncio", "email", "http", "xml", "subprocess", "arro3", "shutil", "difflib", "html"),
)
OTHERS = (
    *("maintenance", "sync.transfer.apply", "sync.transfer.pull", "sync.transfer.push", "sync.plan.planner"),
    *("sync.commit.publish", "sync.conflicts.renumber", "sync.conflicts.copies", "sync.bulk_pass", "sync.hydrate"),
)
"""Commands and rare turns that a sync has nothing to do with, and all that moves data."""


def test_a_sync_with_nothing_to_do_is_one_request_and_loads_no_engine(s3_team: Team, proxy: HttpProxy) -> None:
    clone = s3_team.clone("a")
    clone.write("files/a", "1")
    os.utime(clone.repo.tree_root / "files/a", (1, 1))  # a file that is milliseconds old is hashed once more
    assert clone.sync().commit is not None

    proxy.log.clear()
    ran: Any = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bayou", "datastore", "sync", "--json"],
        cwd=clone.repo.root,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert '"engine": "fast"' in ran.stdout
    assert [(seen.method, seen.status) for seen in proxy.log.rows()] == [("GET", 304)]
    modules = set(re.findall(r"^import time:.*\| +(\S+)$", ran.stderr, re.MULTILINE))
    assert "bayou.sync.run" in modules
    assert {name.partition(".")[0] for name in modules}.isdisjoint(HEAVY)
    assert modules.isdisjoint(f"bayou.{name}" for name in OTHERS)
    assert not {name for name in modules if name.startswith(("bayou.data.", "bayou.spark", "bayou.session"))} - {
        "bayou.data.sync_hooks",
    }
