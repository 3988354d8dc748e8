"""`python/call`: a Python function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayou.model.types.python import PythonJob, run_python
from bayou.model.types.spec import Method, OutputSpec
from bayou.model.work import Work

_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "target": {
            "type": "string",
            "pattern": f"^{_NAME}:{_NAME}$",
            "description": "package.module:function; modules of the repo's root can be imported",
        },
        "arguments": {"type": "object", "default": {}, "description": "What the function is called with, by name"},
    },
    "required": ["target"],
    "additionalProperties": False,
}


class PythonCall:
    """Calls a function, in a process of its own. What it returns is `result`; what it prints is `log`."""

    name = "python/call"
    description = "Call a Python function"
    methods: Mapping[str, Method] = {
        "call": Method(
            "call",
            "Call a function, and keep what it returns: bytes and texts as they are, anything else as JSON",
            _ARGUMENTS,
            (OutputSpec("result"), OutputSpec("log", "text/plain", streaming=True)),
            keep_failed=True,
        )
    }

    def run(self, method: str, arguments: Mapping[str, Any], work: Work) -> None:
        module, _, function = arguments["target"].partition(":")
        job = PythonJob("module", module, function, arguments.get("arguments", {}), construct=False)
        run_python(job, work, save_none=True)
