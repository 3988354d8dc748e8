"""Expressions in definitions: `${{ … }}`, in CEL. CEL is loaded only when an expression occurs."""

from bayou.models.expressions.check import FoundExpression, check, inputs_used, uses
from bayou.models.expressions.evaluate import REDACTED, DataLookup, EvaluatedValue, evaluate, redact, view
from bayou.models.expressions.scan import NAMES, EvaluationScope, has_expression

__all__ = [
    "NAMES",
    "REDACTED",
    "DataLookup",
    "EvaluatedValue",
    "EvaluationScope",
    "FoundExpression",
    "check",
    "evaluate",
    "has_expression",
    "inputs_used",
    "redact",
    "uses",
    "view",
]
