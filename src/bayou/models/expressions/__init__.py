"""Expressions in definitions: `${{ … }}`, in CEL. CEL is loaded only when an expression occurs."""

from bayou.models.expressions.check import Found, check, inputs_used, uses
from bayou.models.expressions.evaluate import REDACTED, DataLookup, Evaluated, evaluate, redact, view
from bayou.models.expressions.scan import NAMES, EvaluationScope, has_expression

__all__ = [
    "NAMES",
    "REDACTED",
    "DataLookup",
    "Evaluated",
    "EvaluationScope",
    "Found",
    "check",
    "evaluate",
    "has_expression",
    "inputs_used",
    "redact",
    "uses",
    "view",
]
