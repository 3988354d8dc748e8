"""What the tests of the pipeline share: one warm Spark server for each worker of a run, and none left after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayou.config import SparkConfig
from bayou.spark.server.files import ServerFiles, terminate
from tests.cli.conftest import SOURCE, command, processes, proxy, s3_env, s3_team, team  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from bayou.spark.server.control import SparkServer

SECRET = "the-secret-of-the-first-caller"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give whoever comes first the time that a server and its class archive take on a busy machine."""
    if item.get_closest_marker("spark"):
        item.add_marker(pytest.mark.timeout(900), append=False)


@pytest.fixture(scope="package", autouse=True)
def spark_cache(clean_environment: None) -> Iterator[Path]:
    """A cache of this run's own. Whatever server a test starts in it has ended when the run does.

    Like a person's, its name is short enough for the sockets that are in it.
    """
    with tempfile.TemporaryDirectory(prefix="bayou-") as name, pytest.MonkeyPatch.context() as patch:
        root = Path(name)
        patch.setenv("XDG_CACHE_HOME", str(root))
        patch.setenv("PYTHONPATH", str(SOURCE))  # as in the processes that tests start: it is part of an identity
        patch.setenv("BAYOU_SPARK_IDLE", "120")  # also if this process is killed
        patch.setenv("BAYOU_SPARK_SESSIONS", "1000")  # the tests share one server, which none of them may find replaced
        yield root
        end_servers(root)


def end_servers(cache: Path) -> None:
    for lock in cache.glob("bayou/spark/*/server.lock"):
        terminate(ServerFiles(lock.parent))


@pytest.fixture(scope="package")
def classes(spark_cache: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of class archives. They are kept from run to run: one takes as long as all the tests."""
    folder = spark_cache / "bayou" / "spark" / "classes"
    folder.mkdir(parents=True)
    kept = request.config.cache.mkdir("spark-classes") if request.config.cache else None
    for archive in kept.glob("*.jsa") if kept else ():
        (folder / archive.name).symlink_to(archive)
    yield folder
    for archive in folder.glob("*.jsa"):
        if kept and not archive.is_symlink():
            for old in kept.glob("*"):
                old.unlink()
            shutil.copy(archive, kept / f".{archive.name}.{os.getpid()}")
            os.replace(kept / f".{archive.name}.{os.getpid()}", kept / archive.name)


@pytest.fixture(scope="package")
def warm(classes: Path) -> SparkServer:
    """The warm server, started by somebody who has credentials in the environment."""
    from bayou.spark.server.control import SparkServer
    from bayou.spark.warm import warm_up

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_SECRET_ACCESS_KEY", "GOOGLE_BEARER_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "MY_TOKEN"):
            patch.setenv(name, SECRET)
        patch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:9")
        warm_up(SparkConfig())
    return SparkServer.of(SparkConfig())


@pytest.fixture
def spark(warm: SparkServer) -> Iterator[SparkSession]:
    """A session on the warm server."""
    from bayou.spark.session import spark_session

    with spark_session(SparkConfig()) as session:
        yield session
