"""Models: who owns data. A definition is a file that people write and commit, `models/<type…>/<name>.yaml`.

Nothing here talks to a store, and only `delete_model` touches data (F094).
"""

from bayou.models.definition import Definition, load_definition
from bayou.models.edit import DeletedModel, create_model, delete_model
from bayou.models.find import ModelListing, defined, find_model, list_models, resolve_model

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
