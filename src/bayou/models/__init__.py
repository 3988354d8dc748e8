"""Models: the owners of data. A definition is a file that people write and commit, `models/<type…>/<name>.yaml`.

Finding and editing definitions sends no request, and only `delete_model` changes data (F094).
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
