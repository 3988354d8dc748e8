"""Every exception that Bayou raises, under its public name: `bayou.errors.LeaseTimeout`.

The tree of exceptions, and when to catch which, is in the docstring of `bayou.core.errors`, where they are defined.
"""

from bayou.core.errors import *  # noqa: F403  (all of them are public)
