"""What all tests share: settings of hypothesis, a clean environment, a guard, and two servers on this machine."""

from __future__ import annotations

import ipaddress
import os
import random
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from bayou.core import limits
from bayou.data.query import evaluator
from bayou.engine import select
from bayou.objectstore.retry import RetryPolicy
from bayou.spark.executor import SparkEngines

if TYPE_CHECKING:
    from bayou_testing.azurite import AzuriteServer
    from bayou_testing.gcs import GcsServer
    from bayou_testing.s3 import S3Endpoint

select.install(SparkEngines)  # as an entry point of the program does

# The suite's assertions are read by people who have never seen its source.
pytest.register_assert_rewrite("bayou_testing.contract")

SEED = "BAYOU_TEST_SEED"
"""Who names a seed gets the same cases every time, as `.ci/run` does; else every run has new ones."""

_DRAWN = "BAYOU_TEST_SEED_DRAWN"
"""Says to the workers of a run that nobody has named the seed."""

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "test",
    max_examples=60,
    deadline=None,
    derandomize=SEED in os.environ and _DRAWN not in os.environ,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.register_profile("soak", settings.get_profile("test"), max_examples=3000, derandomize=False)
settings.load_profile("test")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job. Tests interrupt themselves and their children, which would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FOREIGN = ("AWS_", "AZURE_", "CLOUDSDK_", "GOOGLE_", "GCLOUD_", "SPARK_")
_FOREIGN_NAMES = {
    "NO_COLOR",
    "FORCE_COLOR",
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
}


def pytest_configure(config: pytest.Config) -> None:
    # Set in the first process, inherited by the workers of xdist: one seed for a run.
    if SEED not in os.environ:
        os.environ.update({SEED: str(secrets.randbelow(10**9)), _DRAWN: "yes"})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file on one worker, and all that need Spark: a second server costs more than it saves."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/spark" if file.startswith("tests/spark/") else file

    return Scheduler(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED}={os.environ[SEED]} repeats what `rng` draws; hypothesis prints how to repeat a failure"


@pytest.fixture
def expression_limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what an expression may take, as in `expression_limits(seconds=1.0)`, for processes that begin after that."""

    def set_limits(**limits_: float) -> None:
        for name, value in limits_.items():
            monkeypatch.setattr(limits, f"EXPRESSION_{name.upper()}", value)
        monkeypatch.setattr(evaluator, "_idle", [])

    return set_limits


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat failed requests at once."""
    monkeypatch.setattr(RetryPolicy, "backoff", lambda *_: 0.001)


@pytest.fixture
def loose_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Push every file as an object of its own."""
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")


@pytest.fixture
def install_engine() -> Iterator[Callable[[Callable[[], Any] | None], None]]:
    """Registers another engine instead of Spark, or none, for one test."""
    yield select.install
    select.install(SparkEngines)


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe stores without writers that race for a key: tests/objectstore proves that they do, and it takes seconds."""
    monkeypatch.setattr("bayou.objectstore.probe.ROUNDS", 0)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A source of randomness of this test's own, the same in every run with the same seed."""
    file, _, name = request.node.location  # unlike its id, the same in every way to run the tests
    return random.Random(f"{os.environ[SEED]} {file} {name}")


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no test, nor a process that it starts, find a developer's credentials, settings or proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            ours = name.startswith("BAYOU_") and not name.startswith("BAYOU_TEST_")
            if ours or name.startswith(_FOREIGN) or name.upper() in _FOREIGN_NAMES:
                patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("NO_PROXY", "*")
        yield


def _leaves_this_machine(family: int, address: Any) -> bool:
    """Whether a connection to `address` would go anywhere but to the loopback interface."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return False
    host = str(address[0]).partition("%")[0]
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail every test that opens a socket to another machine, also if it swallows the error.

    This sees Python's sockets: boto3, urllib, grpc's Python side. obstore connects in Rust and is not covered; its
    endpoint is what a test gives it.
    """
    attempts: list[str] = []

    def guarded(method: Any) -> Any:
        def connect(self: socket.socket, address: Any) -> Any:
            if _leaves_this_machine(self.family, address):
                attempts.append(str(address))
                raise PermissionError(f"tests stay on this machine: no connection to {address}")
            return method(self, address)

        return connect

    monkeypatch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
    yield attempts
    if attempts:
        pytest.fail(f"connected to {', '.join(attempts)}; tests stay on this machine")


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of one run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def seaweed(shared_root: Path) -> Iterator[S3Endpoint]:
    """A real S3 server: SeaweedFS, one for all workers. Take a bucket of your own."""
    from bayou_testing.seaweed import shared_seaweed

    with shared_seaweed(shared_root / "seaweed") as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzuriteServer]:
    """A real Azure server: Azurite, one for each worker, with a container `bayou`. Use a prefix of your own."""
    from bayou_testing.azurite import AzuriteServer, available

    if (missing := available()) is not None:
        pytest.skip(f"no Azurite: {missing}")
    with AzuriteServer() as server:
        server.create_container("bayou")
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """The GCS server of `bayou_testing`, one for each worker, with a bucket `bayou`. Use a prefix of your own."""
    from bayou_testing.gcs import GcsServer

    with GcsServer(buckets=["bayou"]) as server:
        yield server
