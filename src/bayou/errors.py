"""Every exception that Bayou raises, under its public name: `bayou.errors.LeaseTimeout`.

`bayou.core.errors` defines them. `help(bayou.errors)` shows the docstring of that module: the tree of exceptions, and
when to catch which.
"""

from bayou.core import errors
from bayou.core.errors import *  # noqa: F403  (all of them are public)

__doc__ = errors.__doc__
__all__ = [
    name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
]
