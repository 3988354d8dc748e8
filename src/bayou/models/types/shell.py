"""`command/shell`: the model type whose method runs a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bayou.core.errors import MethodFailed
from bayou.models.method_context import MethodContext
from bayou.models.process import Excerpt, RedactingForwarder, run_process
from bayou.models.types.schema import Method, OutputSpec

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "run": {"type": "string", "minLength": 1, "description": "What /bin/sh is to run"},
        "workdir": {"type": "string", "minLength": 1, "description": "Where to run it, from the repo's root on"},
        "env": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
            "propertyNames": {"pattern": f"^{_NAME}$"},
            "description": "Variables to add to the environment",
        },
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds after which it is killed"},
        "ignore_exit_code": {"type": "boolean", "default": False, "description": "Succeed whatever its exit code is"},
    },
    "required": ["run"],
    "additionalProperties": False,
}
_LAST_LINE = 200


class Shell:
    """Runs a command, and saves its exit code and its output.

    `log` has all that the command printed, in order; `result` is for programs, and leaves out the middle of a long
    output. Both stay when the command fails: they say why.
    """

    name = "command/shell"
    description = "Run a command line"
    methods: Mapping[str, Method] = {
        "execute": Method(
            "execute",
            "Run a command with /bin/sh, and keep its exit code and what it prints",
            _ARGUMENTS,
            (
                OutputSpec("result", "application/json"),
                OutputSpec("log", "text/plain", streaming=True),
            ),
            keep_failed=True,
        )
    }

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        command: str = arguments["run"]
        excerpts = {"stdout": Excerpt(), "stderr": Excerpt()}
        with work.log(skip_empty=False, redacted=True) as log:

            def printed(stream: str, data: bytes) -> None:
                excerpts[stream].add(data)
                log.write(data)

            with RedactingForwarder(work, printed) as redacted:
                ended = run_process(
                    ["/bin/sh", "-c", command],
                    cwd=work.root / arguments.get("workdir", "."),
                    environment={**work.environment, **_as_variables(arguments.get("env", {}))},
                    mark=work.output_id,
                    timeout=arguments.get("timeout"),
                    cancelled=work.cancelled,
                    printed=redacted.printed,
                    waiting=log.flush_if_due,
                )
        result = {
            "exit_code": ended.exit_code,
            "stdout": excerpts["stdout"].text(),
            "stderr": excerpts["stderr"].text(),
            "command": work.redact(command),
            "duration_s": round(ended.duration_s, 3),
        }
        work.save("result", json.dumps(result, ensure_ascii=False).encode(errors="backslashreplace"))
        if ended.why is not None and not (ended.exited and arguments.get("ignore_exit_code", False)):
            last = excerpts["stderr"].last_line(_LAST_LINE)
            raise MethodFailed(f"the command {ended.why}{f': {last}' if last else ''}")


def _as_variables(given: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts, as an environment needs them."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
