"""Types of models: the arguments and outputs of their methods, and how methods run.

Built in are `command/shell`, `python/call` and `spark/sql`. Others come from entry points (`bayou.models`), and from
`extensions/models/*.py` of the repo: plain classes with typed methods.
"""

from bayou.models.types.registry import Types, find_type, load_types
from bayou.models.types.schema import Method, ModelType, OutputSpec
from bayou.models.types.validation import ArgumentProblem, coerce, problems

__all__ = [
    "ArgumentProblem",
    "Method",
    "ModelType",
    "OutputSpec",
    "Types",
    "coerce",
    "find_type",
    "load_types",
    "problems",
]
