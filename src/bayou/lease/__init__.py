"""Leases: who may write to a model, or to the whole store, at this moment (V13).

A lease is one small object, changed only by compare-and-swap. It keeps writers out of each other's way; it does not
keep data safe: the commit is a compare-and-swap of its own.

    leases = open_leases(repo)
    with leases.acquire(model_key(type, id), on_wait=say) as lease:
        lease.check()       # before each write: raises LeaseLost once it is no longer ours
"""

from bayou.lease.claim import Lease
from bayou.lease.group import LeaseGroup
from bayou.lease.inherit import VARIABLE, environment
from bayou.lease.keys import COMMIT, STORE, model_key
from bayou.lease.leases import Leases, open_leases
from bayou.lease.status import LeaseInfo

__all__ = [
    "COMMIT",
    "STORE",
    "VARIABLE",
    "Lease",
    "LeaseGroup",
    "LeaseInfo",
    "Leases",
    "environment",
    "model_key",
    "open_leases",
]
