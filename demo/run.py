"""Two repos share one store: write, push, hydrate, change on both sides, keep a conflict, verify, collect.

    ./dev demo [--keep]

Nothing has to be started: the store is a directory. Every `$` line is a command that you could type yourself; the
lines in between say what happens and why. `--keep` leaves the repos in demo/work to look around in.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bayou.repo import open_repo
from bayou.sync.service import Datastore

HERE = Path(__file__).resolve().parent
WORK = HERE / "work"
BAYOU = Path(sys.executable).parent / "bayou"


class Failed(SystemExit):
    """The demo did not go as it says it does."""


def colour(code: str, text: str) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"\033[{code}m{text}\033[0m"


def say(text: str) -> None:
    print(f"\n{colour('1', text)}", flush=True)


def bayou(repo: Path, *arguments: str, expect: int = 0) -> dict[str, object]:
    """Run a command as a person would, show it and what it prints; return what it says as JSON."""
    shown = shlex.join(["bayou", *arguments])
    print(colour("36", f"{repo.name}$ {shown}"), flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BAYOU_")}
    done = subprocess.run([BAYOU, *arguments], cwd=repo, env=environment, text=True, capture_output=True, check=False)
    for line in (done.stdout + done.stderr).strip().replace(str(WORK), "…").splitlines():
        print(f"  {line}")
    if done.returncode != expect:
        raise Failed(f"`{shown}` exited with {done.returncode}, and not with {expect}")
    return {}


def facts(repo: Path, *arguments: str) -> dict[str, object]:
    """Ask the same command for its JSON, unseen, to check what the demo claims."""
    done = subprocess.run([BAYOU, *arguments, "--json"], cwd=repo, text=True, capture_output=True, check=False)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def check(true: bool, claim: str) -> None:
    if not true:
        raise Failed(f"the demo is wrong: {claim}")


def write(repo: Path, files: dict[str, str]) -> None:
    """Write as a program does: through Bayou, so that every change is journaled before it is made."""
    with Datastore(open_repo(repo)) as datastore:
        for path, content in files.items():
            datastore.tree.write(path, content.encode())
            print(f"  {repo.name}: wrote {path}: {content!r}")


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    laptop, server, store = WORK / "laptop", WORK / "server", WORK / "store"
    url = store.as_uri()

    say("1. Two repos. Each is a directory with a bayou.toml; its data lies in .bayou/tree, at local speed.")
    for repo in (laptop, server):
        repo.mkdir()
        bayou(repo, "init")

    say("2. The laptop's program shares its results: setup proves that the store can be trusted, and pushes.")
    (laptop / ".bayou/tree/files").mkdir(parents=True)
    (laptop / ".bayou/tree/files/notes.txt").write_text("first notes\n")
    bayou(laptop, "datastore", "setup", url)
    write(laptop, {f"data/report/nightly/usage/{day}/raw": f"disk {50 + day} % full" for day in (1, 2, 3)})
    bayou(laptop, "datastore", "sync")

    say("3. The server joins: it sets up against the same store, and has everything. It wrote nothing to it.")
    bayou(server, "datastore", "setup", url)
    same = {
        path.relative_to(laptop).as_posix(): path.read_bytes()
        for path in (laptop / ".bayou/tree").rglob("*")
        if path.is_file()
    }
    for path, content in same.items():
        check((server / path).read_bytes() == content, f"{path} is the same on both")

    say('4. Nothing to do is one request, and it is answered "not modified".')
    bayou(server, "datastore", "sync")
    sent = facts(server, "datastore", "sync")["requests"]
    check(isinstance(sent, dict) and sum(sent.values()) == 1, "a no-op is one request")

    say("5. Both change things. Different paths just merge; for one path that both changed, no byte is lost.")
    write(laptop, {"files/notes.txt": "notes from the laptop\n", "data/report/nightly/usage/4/raw": "disk 54 % full"})
    write(server, {"files/notes.txt": "notes from the server\n", "files/server.txt": "only here so far\n"})
    bayou(laptop, "datastore", "sync")
    bayou(server, "datastore", "sync", expect=3)
    bayou(server, "datastore", "conflicts")
    check(
        (server / ".bayou/tree/files/notes.txt").read_text() == "notes from the laptop\n",
        "the store's side has the path",
    )

    say("6. The server's side was the right one? Take it; that is a change like any other, and goes to everybody.")
    bayou(server, "datastore", "conflicts", "take", "files/notes.txt")
    bayou(server, "datastore", "sync")
    bayou(laptop, "datastore", "sync")
    check((laptop / ".bayou/tree/files/notes.txt").read_text() == "notes from the server\n", "the taken side arrived")

    say("7. A file lost by accident comes back; only a delete that somebody asked for is a delete.")
    (laptop / ".bayou/tree/data/report/nightly/usage/2/raw").unlink()
    print("  laptop: somebody removed data/report/nightly/usage/2/raw with rm")
    bayou(laptop, "datastore", "sync")
    with Datastore(open_repo(laptop)) as datastore:
        datastore.tree.delete("data/report/nightly/usage/1/raw")
        print("  laptop: deleted data/report/nightly/usage/1/raw through Bayou")
    bayou(laptop, "datastore", "sync")
    bayou(server, "datastore", "sync")
    check(not (server / ".bayou/tree/data/report/nightly/usage/1/raw").exists(), "the delete arrived")
    check((laptop / ".bayou/tree/data/report/nightly/usage/2/raw").exists(), "the lost file is back")

    say("8. Every commit is in the log, every object is where the index says, and what nobody needs can be collected.")
    bayou(laptop, "datastore", "log", "-n", "5")
    bayou(laptop, "datastore", "verify")
    bayou(laptop, "datastore", "gc", "--grace", "0s")
    bayou(laptop, "datastore", "verify")
    bayou(laptop, "datastore", "status")

    if "--keep" in sys.argv[1:]:
        print(f"\nThe repos are in {WORK.relative_to(HERE.parent)}: laptop, server, and the store between them.")
    else:
        shutil.rmtree(WORK)
        print("\nDone. `./dev demo --keep` leaves the repos in demo/work, to look around in.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
