"""17.11: a method that prints, raises, returns or is given a private key leaves no trace of it, in whatever form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayou.core.errors import ArgumentsInvalid, ExpressionInvalid
from bayou.repo import Repo
from tests.secrets import LINES, PEM, forms, leaked

CODE = """
import base64, json, os, sys
from pathlib import Path

def _key(form):
    found = json.loads(Path("forms.json").read_text())
    return "\\n\\n".join(found.values()) if form == "all" else found[form]

def says(form, where):
    for at in range(0, len(_key(form)), 50):  # in pieces
        getattr(sys, where).write(_key(form)[at:at + 50])
        getattr(sys, where).flush()

def raises(form):
    raise ValueError(("x" * 300 + "\\n") * 3 + _key(form))

def chained(form):
    try:
        raises(form)
    except ValueError as error:
        raise RuntimeError(repr(str(error)))

def exits(form):
    sys.exit(_key(form))

def returns(form):
    return _key(form)

def returns_bytes(form):
    return _key(form).encode()

def returns_json(form):
    return {"key": [_key(form)], _key(form): 1}

def long(form):
    sys.stdout.write("y" * (128 * 1024 - 700))
    sys.stdout.write("\\n" + _key(form) * 3 + "\\n" + "z\\n" * 200000)
"""


def traces(repo: Repo) -> list[str]:
    """Return every file of the repo's tree and state that has a piece of the key."""
    files = [file for file in (repo.root / ".bayou").rglob("*") if file.is_file()]
    found = [file for file in files if leaked(file.read_bytes().decode(errors="replace"))]
    return [str(file.relative_to(repo.root)) for file in found]


def bayou(repo: Repo, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; whatever it says, it tells nothing of the key."""
    ran = subprocess.run(
        [sys.executable, "-m", "bayou", *args],
        cwd=repo.root,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert leaked(ran.stdout + ran.stderr) == []
    return ran


@pytest.fixture
def lay(repo, define):
    """Write the code, the forms of the key, and a model that calls a function."""
    (repo.root / "keys.py").write_text(CODE)
    (repo.root / "forms.json").write_text(json.dumps(forms(PEM)))

    def model(function: str, **arguments: object):
        return define(
            "python/call", function.replace("_", "-"), {"target": f"keys:{function}", "arguments": {**arguments}}
        )

    return model


@pytest.mark.parametrize("function", ["raises", "chained", "exits", "returns", "returns_bytes", "returns_json", "long"])
def test_a_function_that_tells_the_key_leaves_no_trace(repo, lay, go, function, monkeypatch):
    monkeypatch.setenv("DEPLOY_KEY", PEM)
    model = lay(function, form="${{ env.DEPLOY_KEY == '' ? '' : inputs.form }}")

    for name in ("all", "repr", "collapsed"):
        output = go(model, "call", inputs={"form": name})
        assert output.status == ("failed" if function in ("raises", "chained", "exits") else "succeeded"), output.error
    assert traces(repo) == []


@pytest.mark.parametrize("where", ["stdout", "stderr"])
def test_a_function_that_prints_the_key_in_pieces_leaves_no_trace(repo, lay, go, read, where, monkeypatch):
    monkeypatch.setenv("DEPLOY_KEY", PEM)
    model = lay("says", form="${{ env.DEPLOY_KEY == '' ? '' : inputs.form }}", where=where)

    for name in ("all", "base64 wrapped pem", "crlf"):
        assert go(model, "call", inputs={"form": name}).status == "succeeded"
        assert b"***" in read(model, "log")
    assert traces(repo) == []


@pytest.mark.parametrize(
    "run",
    [
        'printf "%s" "$KEY"; printf "%s" "$KEY" >&2; exit 3',
        'printf "%s" "$KEY" | tr "\\n" " " >&2; exit 3',
        'printf "%s" "$KEY" | base64; printf "%s" "$KEY" | base64 -w0 >&2; exit 3',
        'printf "%s\\n" "$KEY" | while read -r line; do echo "log: $line" >&2; sleep 0.01; done; exit 3',
        'printf "%s\\n" "$KEY" | sed "s/$/\\r/" >&2; exit 3',
        'head -c 131000 /dev/zero | tr "\\0" x; printf "%s" "$KEY"; head -c 400000 /dev/zero | tr "\\0" y',
        'printf "%s" "$KEY" | head -c 200 >&2; exit 3',
        'set -x; : "$KEY"; exit 3',
        "echo '${{ env.DEPLOY_KEY }}' >&2; nonesuch '${{ env.DEPLOY_KEY }}'; exit 3",
    ],
)
def test_a_command_that_prints_the_key_leaves_no_trace_and_the_command_line_prints_none(repo, define, run):
    define("command/shell", "m", {"run": run, "env": {"KEY": "${{ env.DEPLOY_KEY }}"}})

    for options in ([], ["--json"], ["-vv"]):
        ran = bayou(repo, "model", "run", "m", "execute", *options, DEPLOY_KEY=PEM)
        assert ran.returncode in (0, 1)
    assert traces(repo) == []
    for name in ("log", "result"):
        told = bayou(repo, "data", "get", "m", name).stdout
        assert "***" in told or ': "$KEY"' in run
    bayou(repo, "model", "outputs", "m", "--json")


def test_a_key_that_nobody_declared_is_known_by_its_shape(repo, define):
    (repo.root / "id_rsa").write_text(PEM)
    define("command/shell", "m", {"run": "cat id_rsa; tr '\\n' ' ' < id_rsa >&2; exit 3"})

    bayou(repo, "model", "run", "m", "execute", "-v")

    assert traces(repo) == []


def test_the_credentials_of_this_process_are_nowhere_although_no_expression_asks_for_them(repo, define):
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    define("command/shell", "m", {"run": 'env; env >&2; echo "$AWS_SECRET_ACCESS_KEY" | base64 >&2; exit 3'})

    ran = bayou(repo, "model", "run", "m", "execute", "-v", AWS_SECRET_ACCESS_KEY=secret)

    assert secret not in ran.stdout + ran.stderr
    kept = b"".join(file.read_bytes() for file in (repo.root / ".bayou").rglob("*") if file.is_file())
    assert secret.encode() not in kept
    assert b"d0phbHJYVXRuRkVNSS9LN01ERU5H" not in kept


def test_arguments_that_do_not_fit_are_told_without_the_key(repo, define, monkeypatch):
    """The message quotes the first 200 characters of a value: redacted first, cut then."""
    monkeypatch.setenv("DEPLOY_KEY", "q" * 150 + PEM)
    define("command/shell", "m", {"run": "true", "timeout": "${{ env.DEPLOY_KEY }}"})
    define("command/shell", "n", {"run": "true", "env": {"A": ["${{ env.DEPLOY_KEY }}"]}})

    for name in ("m", "n"):
        ran = bayou(repo, "model", "run", name, "execute")
        assert ran.returncode != 0
        assert LINES[1][:8] not in ran.stderr
        assert "***" in ran.stderr


def test_what_an_expression_asks_for_in_vain_is_told_without_the_secret(repo, define, go, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    for asked in ("inputs[env.TOKEN]", "data.latest(env.TOKEN, 'x').content", "data.latest('m', env.TOKEN).content"):
        model = define("command/shell", "m", {"run": f"echo ${{{{ {asked} }}}}"})
        with pytest.raises((ExpressionInvalid, ArgumentsInvalid)) as caught:
            go(model, "execute")
        assert "s3cr3t" not in f"{caught.value.message} {caught.value.hint}", asked


def test_names_and_tags_of_data_tell_no_secret(repo, go, define, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    Path(repo.root / "extensions/models").mkdir(parents=True)
    (repo.root / "extensions/models/t.py").write_text(
        "class T:\n"
        '    type = "my/t"\n'
        "    def tags(self, token: str, work) -> None:\n"
        '        work.save("x", b"data", tags={"by": f"Bearer {token}"})\n'
        "    def name(self, token: str, work) -> None:\n"
        '        work.save(token, b"data")\n'
    )
    model = define("my/t", "m", {"token": "${{ env.TOKEN }}"})

    assert go(model, "tags").status == "succeeded"
    assert go(model, "name").status == "failed"
    kept = [file for file in repo.tree_root.rglob("*") if file.is_file() and b"s3cr3t" in file.read_bytes()]
    assert kept == []
    assert not list(repo.tree_root.rglob("*s3cr3t*"))
