"""A real Azure Blob server for tests: Azurite, when Node and the package are there.

npm install --prefix .azurite azurite
"""

from __future__ import annotations

import base64
import hmac
import os
import shutil
import tempfile
import time
from email.utils import formatdate
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from bayou_testing.processes import ServerFailed, ServerProcess, free_ports

# The account that every Azure emulator has; published by Microsoft, and good for nothing else.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_START_WITHIN = 60.0
_STOP_WITHIN = 5.0
_API = "2023-11-03"


def available() -> str | None:
    """Return why Azurite cannot be started here, or None if it can."""
    if shutil.which("node") is None:
        return "node is not on the PATH"
    if not _script().is_file():
        return f"{_script()} is not there (npm install --prefix .azurite azurite, or set BAYOU_AZURITE)"
    return None


class AzuriteServer:
    """Azurite's blob service on a loopback port, its data in a temporary directory that goes with it."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The endpoint of the account."""
        return f"http://{self.host}:{self.port}/{ACCOUNT}"

    def env(self) -> dict[str, str]:
        """Return the environment in which a client finds this server; plain HTTP it must allow by itself."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": self.url,
        }

    def start(self) -> None:
        """Start it, and return when it serves."""
        reason = available()
        if reason is not None:
            raise ServerFailed(f"Azurite: {reason}")
        self._directory = Path(tempfile.mkdtemp(prefix="bayou-azurite-"))
        (self.port,) = free_ports(1)
        self._process = ServerProcess(self._command(), log=self._directory / "azurite.log", cwd=self._directory)
        deadline = time.monotonic() + _START_WITHIN
        while not self._serves():
            if not self._process.alive() or time.monotonic() > deadline:
                tail = self._process.log_tail()
                self.stop()
                raise ServerFailed(f"Azurite did not start; the end of its log:\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, and drop its data."""
        if self._process is not None:
            self._process.stop(_STOP_WITHIN)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def create_container(self, name: str) -> None:
        """Make a container; one that is there already will do."""
        status, body = self._request("PUT", name)
        if status not in (201, 409):
            raise ServerFailed(f"container {name} could not be made: {status} {body.decode(errors='replace')}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        node = shutil.which("node")
        assert node is not None  # `available` looked.
        options = ["--blobHost", self.host, "--blobPort", str(self.port), "--location", str(self._directory)]
        return [node, str(_script()), *options, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]

    def _serves(self) -> bool:
        try:
            return self._request("PUT", "bayou-ready")[0] in (201, 409)
        except (OSError, HTTPException):
            return False

    def _request(self, method: str, container: str) -> tuple[int, bytes]:
        """Send one request about a container, signed with the account's key."""
        date = formatdate(usegmt=True)
        # The emulator's URLs carry the account in the path, so the canonical resource names it twice.
        signed = f"x-ms-date:{date}\nx-ms-version:{_API}\n/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        text = method + "\n" * 12 + signed
        signature = base64.b64encode(hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), "sha256")).decode()
        headers = {"x-ms-date": date, "x-ms-version": _API, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
        connection = HTTPConnection(self.host, self.port, timeout=10.0)
        try:
            connection.request(method, f"/{ACCOUNT}/{container}?restype=container", headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _script() -> Path:
    package = os.environ.get("BAYOU_AZURITE") or Path(".azurite", "node_modules", "azurite")
    return Path(package).absolute() / "dist" / "src" / "blob" / "main.js"
