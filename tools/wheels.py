"""Install the wheel as users do, with and without its extras, for each Python from 3.11 to 3.13, and try it.

Each installation is a virtual environment of its own, made by uv from the wheel and the registry that pip is set up
for. In each, a first session runs: init, a model, data, a store in a directory, a sync; and with Spark, a query.
`./dev wheels` runs this file; its arguments narrow it: `./dev wheels --python 3.13 --extra light`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("light", "spark", "connect")

SESSION = (
    ("init", "."),
    ("model", "create", "host/linux", "web1"),
    ("datastore", "setup", "{store}"),
    ("data", "put", "web1", "usage", "usage.json"),
    ("data", "get", "web1", "usage"),
    ("data", "list"),
    ("datastore", "sync"),
    ("datastore", "verify"),
)
"""What works in every installation."""


class Failed(Exception):
    """A step did not do what it should; the text says which and how."""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def must(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command, and return its output; `Failed` if it does not exit with 0."""
    done = run(*command, cwd=cwd, env=env)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(directory: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; return both."""
    must(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", directory, cwd=ROOT)
    (sdist,) = directory.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        shutil.unpack_archive(sdist, unpacked, filter="data")
        (source,) = Path(unpacked).iterdir()
        must(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=source)
    (wheel,) = directory.glob("*.whl")
    return sdist, wheel


def find_python(version: str) -> Path | None:
    """Return an interpreter of that version: on the PATH, or one that pyenv keeps; None if neither has one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *kept):
        if candidate and run(candidate, "-c", "import sys; print(sys.version)", cwd=ROOT).stdout.startswith(version):
            return Path(candidate)
    return None


def environment(home: Path) -> dict[str, str]:
    """Return an environment without the developer's virtual environment, settings and repo."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "BAYOU_", "AWS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"HOME": str(home), "NO_COLOR": "1"}


def install(python: Path, wheel: Path, extra: str, target: Path) -> Path:
    """Make a virtual environment with the wheel and an extra; return its `bayou`."""
    uv = Path(sys.executable).with_name("uv")
    must(uv, "venv", "--quiet", "--python", python, target, cwd=target.parent)
    wanted = f"bayou @ {wheel.as_uri()}" if extra == "light" else f"bayou[{extra}] @ {wheel.as_uri()}"
    must(uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", wanted, cwd=target.parent)
    return target / "bin" / "bayou"


def try_out(bayou: Path, extra: str, scratch: Path) -> None:
    """Run a first session with an installed `bayou`."""
    repo, store = scratch / "repo", scratch / "store"
    for directory in (repo, store):
        directory.mkdir()
    (repo / "usage.json").write_text('{"disk": 51}\n')
    env = environment(scratch)
    outputs = {
        step[:2]: must(bayou, *(w.format(store=store.as_uri()) for w in step), cwd=repo, env=env) for step in SESSION
    }
    if outputs["data", "get"] != '{"disk": 51}\n' or "usage" not in outputs["data", "list"]:
        raise Failed(f"the item is not what was put: {outputs}")
    # A Spark of this machine needs the whole package; of one elsewhere the client is enough.
    for remote, works in ((None, extra == "spark"), ("sc://127.0.0.1:1", extra != "light")):
        where = {} if remote is None else {"BAYOU_SPARK_REMOTE": remote}
        asked = run(bayou, "spark", "status", cwd=repo, env=env | where)
        named = "pip install 'bayou[spark]'" in asked.stderr
        if (asked.returncode, named) != ((0, False) if works else (1, True)):
            raise Failed(f"bayou spark status: exit code {asked.returncode}\n{asked.stdout}{asked.stderr}")
    if extra == "spark":
        query_spark(bayou, repo, env)


def query_spark(bayou: Path, repo: Path, env: dict[str, str]) -> None:
    """Ask the Spark of this machine for what the session has saved."""
    query = "SELECT model, name, size FROM data"
    try:
        answer = must(bayou, "data", "sql", query, "--format", "csv", cwd=repo, env=env)
        if answer.split() != ["model,name,size", "web1,usage,13"]:
            raise Failed(f"bayou data sql: {answer}")
    finally:
        run(bayou, "spark", "stop", cwd=repo, env=env)


def installed_size(environment: Path) -> int:
    return sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())


def trials(pythons: list[str], extras: list[str]) -> Iterator[str]:
    """Try each installation; yield a line for each, and for each Python that is not there."""
    with tempfile.TemporaryDirectory(prefix="bayou-wheels-") as temporary:
        scratch = Path(temporary)
        sdist, wheel = build(scratch)
        yield f"built {sdist.name} ({sdist.stat().st_size:,} bytes), {wheel.name} ({wheel.stat().st_size:,} bytes)"
        for version in pythons:
            python = find_python(version)
            if python is None:
                yield f"Python {version}: skipped, this machine does not have it"
                continue
            for extra in extras:
                place = scratch / f"{version}-{extra}"
                place.mkdir()
                bayou = install(python, wheel, extra, place / "venv")
                try_out(bayou, extra, place)
                yield f"Python {version}, {extra}: works, {installed_size(place / 'venv') / 1e6:,.0f} MB installed"
                shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev wheels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version (may be repeated)")
    parser.add_argument("--extra", action="append", choices=EXTRAS, help="only this installation (may be repeated)")
    arguments = parser.parse_args()
    try:
        for line in trials(arguments.python or [*PYTHONS], arguments.extra or [*EXTRAS]):
            print(line, flush=True)
    except Failed as error:
        sys.exit(f"FAILED: {error}")


if __name__ == "__main__":
    main()
