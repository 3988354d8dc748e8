"""What an installed package could offer as types of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayou.models.method_context import MethodContext
from bayou.models.types import Method


class Words:
    """Count words."""

    type = "text/words"

    def count(self, text: str) -> int:
        return len(text.split())


class Taken:
    type = "command/shell"

    def execute(self) -> None: ...


class _Whole:
    name = "whole/type"
    description = "as it is"
    methods: Mapping[str, Method] = {"go": Method("go", "", {"type": "object"})}

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        arguments["then"](work)


WHOLE = _Whole()
NUMBER = 5
