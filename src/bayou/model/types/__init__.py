"""Types of models: what their methods take, what they make, and how they are run.

Built in are `command/shell`, `python/call` and `spark/sql`. Others come from entry points (`bayou.models`), and from
`extensions/models/*.py` of the repo: plain classes with typed methods.
"""

from bayou.model.types.arguments import Problem, coerce, problems
from bayou.model.types.registry import Types, find_type, load_types
from bayou.model.types.spec import Method, ModelType, OutputSpec

__all__ = [
    "Method",
    "ModelType",
    "OutputSpec",
    "Problem",
    "Types",
    "coerce",
    "find_type",
    "load_types",
    "problems",
]
