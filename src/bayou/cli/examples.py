"""What `--help` says of the arguments of a command, and its examples.

The texts stand here and not beside the commands: a test goes through all commands and finds the one without. Only help
imports this module. An example without the word `bayou` is a command line of Bayou without that word.
"""

from __future__ import annotations

from collections.abc import Mapping

Example = tuple[str, str]
"""What it does, and the command line."""

_MODEL = "The model, by name or id."
_ITEM = "The name of the data."
_WORKFLOW = "The workflow, by name or id."
_RUN = "The run: its id, the beginning of it, or latest."
_INPUT = "The file to read; - or nothing is the standard input."
_COPY = "The path of the file, or of its copy, as `datastore conflicts` lists them."

ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "init": {"DIR": "The directory; it is made if it is not there. Else this one."},
    "completion": {"{bash|zsh|fish}": "The shell to print the script for."},
    "help": {"COMMAND": "The words of a command, as data put."},
    "data put": {
        "MODEL": _MODEL,
        "NAME": _ITEM,
        "FILE|DIR|-": "The file or directory to save; - or nothing is the standard input.",
    },
    "data append": {"MODEL": _MODEL, "NAME": _ITEM, "FILE|-": _INPUT},
    "data get": {"MODEL": _MODEL, "NAME": _ITEM},
    "data list": {"MODEL": "Only of this model, by name or id."},
    "data versions": {"MODEL": _MODEL, "NAME": _ITEM},
    "data query": {"PREDICATE": "A CEL expression that is true for what to find."},
    "data rename": {"MODEL": _MODEL, "OLD": "Its name now.", "NEW": "Its new name."},
    "data delete": {"MODEL": _MODEL, "NAME": _ITEM},
    "data undelete": {"MODEL": _MODEL, "NAME": _ITEM},
    "data prune": {"MODEL_ID": "A model that you know is gone, by its id."},
    "data sql": {"QUERY": "A SELECT in Spark SQL."},
    "model create": {"TYPE": "What the model is; `model types` lists those with methods.", "NAME": "Its name."},
    "model get": {"MODEL": _MODEL},
    "model delete": {"MODEL": _MODEL},
    "model describe": {"TYPE": "The type, as `model types` lists it."},
    "model run": {"MODEL": _MODEL, "METHOD": "The method, as `model describe` lists it."},
    "model outputs": {"MODEL": _MODEL},
    "model logs": {"MODEL": _MODEL, "OUTPUT": "The output, by its id or a unique beginning of it; else the newest."},
    "workflow create": {"NAME": "The name of the new workflow."},
    "workflow get": {"NAME": _WORKFLOW},
    "workflow validate": {"NAME": "The workflow, by name or id; else all of them."},
    "workflow run NAME": {"NAME": _WORKFLOW},
    "workflow run search": {"TEXT": "Only runs with this text in their inputs, tags, steps or errors."},
    "workflow run get": {"RUN": _RUN},
    "workflow run logs": {"RUN": _RUN, "STEP": "Only this step."},
    "workflow graph": {"NAME|RUN": "A workflow by name or id, or a run."},
    "workflow resume": {"RUN": _RUN},
    "workflow evaluate": {"NAME": _WORKFLOW},
    "workflow delete": {"NAME": _WORKFLOW},
    "datastore setup": {"URL|PATH": "s3://, gs://, az:// or file:// with bucket and prefix, or a directory."},
    "datastore replicate": {"URL": "The other store, as for `datastore setup`."},
    "datastore hydrate": {"MODEL|PATH": "A model by name or id, or a path of the datastore; else everything."},
    "datastore cat": {"PATH": "A path of the datastore, as data/…/raw."},
    "datastore export": {"DIR": "Where to write the files."},
    "datastore conflicts show": {"PATH": _COPY},
    "datastore conflicts take": {"PATH": _COPY},
    "datastore conflicts drop": {"PATH": _COPY},
    "datastore lock release": {"KEY": "The key of the lease, as `datastore lock status` shows it."},
}
"""Of each command, its arguments by the name that its usage line has."""

_START = (
    ("Keep data: make a repo, a model to own the data, and save a file", "init"),
    ("", "model create host web1"),
    ("", "data put web1 report report.csv"),
    ("Share it with a team, through a bucket", "datastore setup s3://team-bucket/project"),
    ("See what a sync would do", "datastore sync --dry-run"),
)

EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "": _START,
    "init": (("Make this directory a repo", "init"), ("Make a new directory that is one", "init project")),
    "completion": (("Complete commands in bash", 'eval "$(bayou completion bash)"'),),
    "help": (("The same as `bayou data put --help`", "help data put"),),
    "data": (
        ("Save a file", "data put web1 report report.csv"),
        ("Print it", "data get web1 report"),
        ("Get yesterday's version back: find its number, and save it", "data versions web1 report"),
        ("", "data get web1 report --version 3 -o report.csv"),
        ("Make it the latest version again", "data put web1 report report.csv"),
        ("Undo a delete", "data undelete web1 report"),
    ),
    "data put": (
        ("Save a file as the next version", "data put web1 report report.csv"),
        ("Save what a program prints", "df -h | bayou data put web1 disk"),
        ("Save a directory as one version", "data put sales orders exported/"),
        ("Keep each version 30 days", "data put web1 report report.csv --lifetime 30d --tag env=prod"),
    ),
    "data append": (
        ("Begin a log, and add to it", "data put web1 log --streaming first.log"),
        ("", "data append web1 log more.log"),
    ),
    "data get": (
        ("Print the latest version", "data get web1 report"),
        ("Write an older version to a file", "data get web1 report --version 3 -o report.csv"),
        ("Write a version of many files to a directory", "data get sales orders -o orders"),
        ("See all that is known of it", "data get web1 report --json"),
    ),
    "data list": (
        ("Everything", "data list"),
        ("The ten largest", "data list --sort size --limit 10"),
        ("By name and tag", "data list web1 --name 'report-*' --tag env=prod"),
    ),
    "data versions": (
        ("See which versions there are, and since when", "data versions web1 report"),
        ("Write one of them to a file", "data get web1 report --version 3 -o report.csv"),
    ),
    "data query": (
        ("Large data of production", "data query 'size > 1000000 && tags.env == \"prod\"'"),
        ("By what is in it", "data query 'attributes.status == \"failed\"' --select name"),
    ),
    "data rename": (("Rename data with all its versions", "data rename web1 report summary"),),
    "data delete": (
        ("Delete one version", "data delete web1 report --version 3"),
        ("Delete all of them without being asked", "data delete web1 report -y"),
    ),
    "data undelete": (
        ("Bring back the version that was deleted last", "data undelete web1 report"),
        ("Bring back a certain one", "data undelete web1 report --version 3"),
    ),
    "data gc": (("See what has expired, and delete it", "data gc --dry-run"), ("", "data gc")),
    "data prune": (("See which data has no model any more", "data prune --dry-run"),),
    "data sql": (
        ("Bytes of each model", "data sql 'SELECT model, sum(size) FROM versions GROUP BY model'"),
        ("Into a file, as its name ends", "data sql 'SELECT * FROM runs' -o runs.csv"),
    ),
    "model": (
        ("Make a model that owns data", "model create host web1"),
        ("Run a method, and see what came of it", "model run web1 execute"),
        ("", "model outputs web1"),
    ),
    "model create": (
        ("A model that only owns data", "model create host web1"),
        ("A model with a method that runs a command", "model create command/shell usage --arg run='df -h'"),
    ),
    "model list": (("", "model list"),),
    "model get": (("", "model get web1"),),
    "model delete": (("Delete a model with its data", "model delete web1 --data"),),
    "model types": (("", "model types"),),
    "model describe": (("", "model describe command/shell"),),
    "model run": (
        ("Run a method, and watch what it prints", "model run usage execute -v"),
        ("With inputs", "model run usage execute --input path=/var"),
    ),
    "model outputs": (("", "model outputs usage"),),
    "model logs": (("Of the newest run of a method", "model logs usage"),),
    "workflow": (
        ("Make a workflow, check it and run it", "workflow create nightly"),
        ("", "workflow validate nightly"),
        ("", "workflow run nightly"),
        (
            "Find why last night's run failed: its id, and what it printed",
            "workflow run search --status failed --since 1d",
        ),
        ("", "workflow run logs 0198c0de"),
    ),
    "workflow create": (("", "workflow create nightly"),),
    "workflow list": (("", "workflow list"),),
    "workflow get": (("", "workflow get nightly"),),
    "workflow validate": (("Check all workflows", "workflow validate"),),
    "workflow run": (
        ("Run a workflow", "workflow run nightly --input day=monday"),
        ("See which runs failed, and why", "workflow run search --status failed --since 1d"),
        ("", "workflow run logs 0198c0de"),
    ),
    "workflow run NAME": (("", "workflow run nightly --input day=monday --tag env=prod"),),
    "workflow run search": (("Failed since yesterday", "workflow run search --status failed --since 1d"),),
    "workflow run get": (("", "workflow run get 0198c0de"),),
    "workflow run logs": (
        ("What the steps of the newest run printed", "workflow run logs latest"),
        ("Of one step of an older run, which `workflow run search` finds", "workflow run logs 0198c0de usage"),
    ),
    "workflow graph": (("", "workflow graph nightly"),),
    "workflow resume": (("Continue a run that failed, from where it failed", "workflow resume 0198c0de"),),
    "workflow evaluate": (("", "workflow evaluate nightly --input day=monday"),),
    "workflow delete": (("", "workflow delete nightly"),),
    "datastore": (
        ("Share data through a bucket", "datastore setup s3://team-bucket/project"),
        ("See what a sync would do, and do it", "datastore sync --dry-run"),
        ("", "datastore sync"),
    ),
    "datastore setup": (
        ("A bucket on AWS", "datastore setup s3://team-bucket/project --option region=eu-central-1"),
        (
            "A server of your own that speaks S3",
            "datastore setup s3://team/project --option endpoint=https://s3.example.com",
        ),
        ("A shared directory, with a copy here", "datastore setup file:///mnt/shared/project"),
        ("Join from another machine, in a Git clone of this repo", "datastore sync"),
    ),
    "datastore status": (("", "datastore status"),),
    "datastore sync": (
        ("See what a sync would do", "datastore sync --dry-run"),
        ("Pull and push", "datastore sync"),
        ("Only take what others have pushed", "datastore sync --pull"),
    ),
    "datastore verify": (("Read and check every object", "datastore verify --deep"),),
    "datastore log": (("The last three commits", "datastore log -n 3"),),
    "datastore gc": (("See what would be deleted", "datastore gc --dry-run"),),
    "datastore compact": (("See what would be moved", "datastore compact --dry-run"),),
    "datastore replicate": (("Copy everything to another store", "datastore replicate file:///mnt/backup/project"),),
    "datastore hydrate": (("Fetch all content of a model", "datastore hydrate web1"),),
    "datastore cat": (("", "datastore cat data/host/5f…/report/3/raw"),),
    "datastore export": (("Write the data of all hosts", "datastore export backup --prefix data/host"),),
    "datastore conflicts": (
        ("List what was kept", "datastore conflicts"),
        ("Compare one with what has its path now", "datastore conflicts show files/plan.md"),
        ("Put it back", "datastore conflicts take files/plan.md"),
    ),
    "datastore conflicts show": (("", "datastore conflicts show files/plan.md"),),
    "datastore conflicts take": (("", "datastore conflicts take files/plan.md"),),
    "datastore conflicts drop": (("", "datastore conflicts drop files/plan.md"),),
    "datastore lock": (("See who writes now", "datastore lock status"),),
    "datastore lock status": (("", "datastore lock status"),),
    "datastore lock release": (("", "datastore lock release host/5f… --nonce 0198c0de"),),
    "trust": (("See what this clone asks for, and allow it", "trust show"), ("", "trust allow")),
    "trust show": (("", "trust show"),),
    "trust allow": (("", "trust allow"),),
    "trust revoke": (("", "trust revoke"),),
    "spark": (("See whether Spark runs", "spark status"), ("Start it before the first query", "spark warm")),
    "spark status": (("", "spark status"),),
    "spark warm": (("", "spark warm"),),
    "spark stop": (("", "spark stop"),),
}
"""Of each command, by its words; the empty text is Bayou itself. An example without a text continues the one before."""


def command_line(text: str) -> str:
    """Return an example as a user types it."""
    return text if "bayou " in text else f"bayou {text}"
