"""Models: who owns data. A definition is a file that people write and commit, `models/<type…>/<name>.yaml`.

Nothing here talks to a store, and only `delete_model` touches data (F094).
"""

from bayou.model.create import create_model
from bayou.model.definition import Definition, load_definition
from bayou.model.delete import DeletedModel, delete_model
from bayou.model.find import ModelListing, defined, find_model, list_models
from bayou.model.resolve import resolve_model

__all__ = [
    "Definition",
    "DeletedModel",
    "ModelListing",
    "create_model",
    "defined",
    "delete_model",
    "find_model",
    "list_models",
    "load_definition",
    "resolve_model",
]
