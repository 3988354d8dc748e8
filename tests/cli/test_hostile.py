"""17.13: no text of strangers makes a line of its own, or tells a terminal what to do, in any output."""

from __future__ import annotations

import json
import os
import re
import uuid

import pytest
import yaml
from tests.cli.test_output import on_terminal
from tests.sync.conftest import Team

from bayou.cli.errors import report
from bayou.core.deadline import Deadline
from bayou.core.errors import HeadCorrupt, UsageError
from bayou.data.catalog.rows import SavedVersion
from bayou.data.layout import ModelRef
from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.data.runs import JobRecord, Run, StepRecord
from bayou.leases.objects import HeldLease, encode
from bayou.objectstore import keys
from bayou.session import write_session

HOSTILE = (
    "x\nerror: fake\r\nhint: fake\x1b]0;title\x07\x1b[2J\u202eevil\u2066\u200f\x9b1m\u2028\x85fake\U000e0041\x7f\tz"
)
NAME = "a\u202eb\u2066c\u200b"
"""What a name of data may be."""

TIME = "2026-01-01T00:00:00.000Z"
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff\ud800-\udfff]"
)


def check(text: str) -> None:
    """Fail if a terminal, or a person who reads line by line, could be deceived."""
    assert RAW.search(text) is None, repr(text[max(0, RAW.search(text).start() - 40) :][:90])
    assert [line for line in text.splitlines() if re.match(r"\s*(error|hint): fake|\s*fake", line)] == []


@pytest.fixture
def hostile(team: Team, monkeypatch: pytest.MonkeyPatch):
    """A clone in which everything that can have a text has that one."""
    monkeypatch.setattr("bayou.sync.context.identity", lambda: HOSTILE)
    clone = team.clone("ann")
    repo = clone.repo
    ref = ModelRef("aws/ec2", str(uuid.uuid4()), HOSTILE)
    made = (SavedVersion(HOSTILE, 1, 1, "0" * 64),)
    with write_session(repo) as session:
        records: Records = session.records
        records.data.save(ref, NAME, b"{}", content_type=HOSTILE, tags={HOSTILE: HOSTILE})
        records.outputs.save(
            ref,
            Output(str(uuid.uuid4()), HOSTILE, HOSTILE, TIME, error=HOSTILE, data=made, tags={HOSTILE: HOSTILE}),
        )
        step = StepRecord(HOSTILE, HOSTILE, HOSTILE, HOSTILE, error=HOSTILE, data=made)
        run = Run(
            run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
            workflow_id=str(uuid.uuid4()),
            workflow=HOSTILE,
            status=HOSTILE,
            started_at=TIME,
            finished_at=TIME,
            inputs={HOSTILE: HOSTILE},
            tags={HOSTILE: HOSTILE},
            jobs=(JobRecord(HOSTILE, HOSTILE, (step,)),),
            failed_step=HOSTILE,
            by=HOSTILE,
        )
        records.runs.save(run)
    (repo.root / "models/aws/ec2").mkdir(parents=True)
    document = {"id": ref.id, "name": "web", "type": "aws/ec2", "tags": {HOSTILE: HOSTILE}, "arguments": {HOSTILE: 1}}
    (repo.root / "models/aws/ec2/web.yaml").write_text(yaml.safe_dump(document))
    (repo.root / "models/aws/ec2/bad.yaml").write_text(yaml.safe_dump({**document, "name": HOSTILE, HOSTILE: 1}))
    (repo.root / "models/aws/ec2/worse.yaml").write_text(f"{HOSTILE}: [")
    (repo.root / "workflows/w.yaml").write_text(yaml.safe_dump({"name": HOSTILE, "id": ref.id, "jobs": [{HOSTILE: 1}]}))
    good = {
        "id": str(uuid.uuid4()),
        "name": "good",
        "inputs": {"i": {"type": "string", "default": HOSTILE}},
        "tags": {HOSTILE: HOSTILE},
        "jobs": [{"name": "j", "steps": [{"name": "s", "assert": "${{ false }}", "message": HOSTILE}]}],
    }
    (repo.root / "workflows/good.yaml").write_text(yaml.safe_dump(good))
    held = HeldLease("model/x", HOSTILE, HOSTILE, 1, "01ARZ3NDEKTSV4RRFFQ69G5FAV", TIME, 3600.0)
    repo.store().within(Deadline.after(10)).put(keys.lease("model/x"), encode(held))
    clone.lay(f"data/aws/ec2/{HOSTILE.replace('/', '')}", "untracked")
    clone.lay("outputs/\u202euntracked", "untracked")
    kept = repo.conflicts / "20260101T000000.000000Z/data/aws" / NAME
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(HOSTILE)
    return clone


COMMANDS = [
    ("model", "list"),
    ("model", "get", "web"),
    ("model", "outputs", "web"),
    ("model", "get", HOSTILE),
    ("model", "types"),
    ("model", "run", "web", HOSTILE),
    ("data", "list"),
    ("data", "list", "--all-versions"),
    ("data", "list", "--tag", f"{HOSTILE}={HOSTILE}"),
    ("data", "versions", "web", NAME),
    ("data", "get", "web", HOSTILE),
    ("data", "get", HOSTILE, "x"),
    ("data", "query", "true"),
    ("data", "query", "true", "--select", "tags"),
    ("data", "query", f"name == '{NAME}'", "--select", "content_type"),
    ("data", "query", HOSTILE),
    ("data", "put", "web", HOSTILE, "/dev/null"),
    ("data", "delete", "web", HOSTILE, "-y"),
    ("data", "gc", "--dry-run"),
    ("data", "prune", "--dry-run"),
    ("workflow", "list"),
    ("workflow", "get", "good"),
    ("workflow", "validate"),
    ("workflow", "evaluate", "good"),
    ("workflow", "run", "good"),
    ("workflow", "run", "search"),
    ("workflow", "run", "search", HOSTILE),
    ("workflow", "run", "get", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("workflow", "resume", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("datastore", "status"),
    ("datastore", "sync", "--dry-run", "--adopt"),
    ("datastore", "sync"),
    ("datastore", "log"),
    ("datastore", "verify"),
    ("datastore", "gc", "--dry-run"),
    ("datastore", "compact", "--dry-run"),
    ("datastore", "conflicts"),
    ("datastore", "conflicts", "show", f"data/aws/{NAME}"),
    ("datastore", "conflicts", "take", HOSTILE),
    ("datastore", "lock", "status"),
    ("datastore", "lock", "release", HOSTILE, "--nonce", HOSTILE),
    ("datastore", "setup", HOSTILE),
    ("datastore", "hydrate", HOSTILE),
    ("datastore", "cat", HOSTILE),
    ("datastore", "export", "exported", "--prefix", HOSTILE),
    ("datastore", HOSTILE),
    (HOSTILE,),
]


def test_every_command_shows_hostile_texts_as_what_they_are(hostile, command, monkeypatch):
    monkeypatch.chdir(hostile.repo.root)
    told = ""
    for words in COMMANDS:
        for options in ([], ["--json"], ["-v"], ["-vv"]):
            ran = command(*words, *options)
            check(ran.out)
            check(ran.err)
            if options == ["--json"]:
                for text in filter(None, (ran.out, ran.err)):
                    json.loads(text)
            told += ran.out
    for shown in (r"x\nerror: fake\r\nhint: fake\x1b]0;title", r"a\u202eb\u2066c"):
        assert told.count(shown) > 10, "it is shown, and not left out"


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("as_json", [False, True])
def test_no_error_of_others_makes_a_line_of_its_own(capsys, verbose, as_json):
    """The body of a store's answer, the name of a file, a note on the way out, a cause."""
    errors: list[BaseException] = [
        UsageError(HOSTILE, hint=HOSTILE),
        HeadCorrupt(HOSTILE),
        OSError(2, "x", HOSTILE),
        ValueError(HOSTILE),
        SyntaxError(HOSTILE, (HOSTILE, 1, 1, HOSTILE)),
    ]
    for error in errors:
        error.add_note(HOSTILE)
        try:
            try:
                raise KeyError(HOSTILE)
            except KeyError as cause:
                raise error from cause
        except BaseException as raised:  # noqa: BLE001
            report(raised, json=as_json, verbose=verbose)
        out, err = capsys.readouterr()
        assert out == ""
        check(err)
        ours = [line for line in err.splitlines() if not line.startswith(" ")]
        assert len(ours) <= 2, "an error and a hint; the trace is indented"


def test_an_error_tells_no_credential_of_this_process(capsys, monkeypatch):
    """17.11: not even with -vv, whoever put it into the message."""
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    for verbose in (0, 1, 2):
        try:
            raise ValueError(f"denied: {secret}")
        except ValueError as error:
            report(error, json=False, verbose=verbose)
        assert secret not in capsys.readouterr().err


SHOUT = r"printf '\033]0;title\007\033[2Jclear\r\nprogress\rdone \342\200\256evil\302\233\n'"


def test_what_a_method_prints_is_shown_without_commands_to_the_terminal(repo, processes):
    processes.cwd = repo.root
    assert processes.run("model", "create", "command/shell", "m", "--arg", f"run={SHOUT}; {SHOUT} >&2").code == 0

    ran = processes.run("model", "run", "m", "execute", "-vv")

    check(ran.out)
    check(ran.err)
    assert "\\x1b]0;title\\x07\\x1b[2Jclear\nprogress\ndone \\u202eevil\\x9b\n" in ran.err


GET = """
import os, sys
os.chdir(sys.argv[1] if len(sys.argv) > 1 else {root!r})
from bayou.cli import run
sys.exit(run(["data", "get", "m", "x"]))
"""


def test_content_is_shown_on_a_terminal_without_commands_to_it_and_goes_into_a_pipe_as_it_is(repo, processes):
    processes.cwd = repo.root
    content = b"\x1b]0;title\x07line\n\tb\xe2\x80\xaec\xff\x9b\r\n"
    (repo.root / "file").write_bytes(content)
    assert processes.run("model", "create", "aws/ec2", "m").code == 0
    assert processes.run("data", "put", "m", "x", "file").code == 0

    shown = on_terminal(GET.format(root=str(repo.root)))
    process = processes.start(["-m", "bayou", "data", "get", "m", "x"])
    assert process.stdout is not None
    piped = os.read(process.stdout.fileno(), 1000)

    assert piped == content
    check(shown.replace("\t", " "))
    assert "\\x1b]0;title\\x07line\n" in shown
    assert "b\\u202ec\\xff\\x9b\n" in shown
