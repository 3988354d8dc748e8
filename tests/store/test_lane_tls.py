"""Many requests to a server with a certificate: one that is trusted, and others that learn nothing."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.store.transport import Undone
from tests.store.lanes import MakeLane, Serve, bodies, lane_to, put, send, serve
from tests.store.scripted import Scripted, body_of

__all__ = ["lane_to", "serve"]


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[str], Path]:
    """Make a certificate that nobody trusts, for a name."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl")

    def make(name: str) -> Path:
        key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
        options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=test", "-addext", f"subjectAltName={name}"]
        where = ["-keyout", str(key), "-out", str(file)]
        subprocess.run([program, "req", *options, *names, *where], check=True, capture_output=True)
        file.write_bytes(file.read_bytes() + key.read_bytes())
        return file

    return make


def secured(serve: Serve, certificate: Path) -> Scripted:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return serve(tls=context)


def trust(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)


def test_a_server_that_is_trusted_is_asked_in_secret(
    serve: Serve, lane_to: MakeLane, certificate: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = certificate("IP:127.0.0.1")
    server = secured(serve, file)
    trust(monkeypatch, file)
    lane = lane_to(server)
    for size in (1, 300_000):
        sent = [bytes([number]) * size for number in range(40)]
        assert bodies(send(lane, put(sent), "PUT")) == {number: str(number).encode() for number in range(40)}
        assert {body_of(request) for request in server.requests if len(body_of(request)) == size} == set(sent)
    assert len(server.requests) == 80
    assert len(server.used) <= 4


@pytest.mark.parametrize("why", ["nobody vouches for it", "it is another"])
def test_a_server_that_is_not_trusted_is_not_asked(
    serve: Serve, lane_to: MakeLane, certificate: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    file = certificate("IP:127.0.0.1" if why == "nobody vouches for it" else "DNS:elsewhere.example")
    server = secured(serve, file)
    if why == "it is another":
        trust(monkeypatch, file)
    lane = lane_to(server)
    found = send(lane, put([b"secret"] * 20), "PUT")
    assert found == dict.fromkeys(range(20), Undone.UNSENT)
    assert lane.closed
    assert server.requests == []


def test_a_server_that_never_shakes_hands_is_not_waited_for(
    serve: Serve, lane_to: MakeLane, certificate: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, certificate("IP:127.0.0.1"))
    silent = serve(lambda key: None)
    silent.url = silent.url.replace("http", "https")
    found = send(lane_to(silent, timeout=0.3), put([b"secret"] * 3), "PUT")
    assert len(found) == 3
    assert all(isinstance(result, Undone) for result in found.values())
    assert silent.requests == []
