"""Expressions in definitions: `${{ … }}`, in CEL. The evaluator is loaded only when one occurs."""

from bayou.model.expressions.check import Found, check, inputs_used, uses
from bayou.model.expressions.data import DataLookup, view
from bayou.model.expressions.evaluate import Evaluated, evaluate
from bayou.model.expressions.redact import REDACTED, redact
from bayou.model.expressions.scan import has_expression
from bayou.model.expressions.scope import NAMES, EvaluationScope

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
