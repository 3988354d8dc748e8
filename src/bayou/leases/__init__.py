"""Leases: who may write to a model, or to the whole store, at this moment (V13).

A lease is one small object, changed only by compare-and-swap. It keeps writers out of each other's way; it does not
keep data safe: the commit is a compare-and-swap of its own.

    leases = open_leases(repo)
    with leases.acquire(model_key(type, id), on_wait=say) as lease:
        lease.check()       # before each write: raises LeaseLost once it is no longer ours
"""

from bayou.leases.lease import VARIABLE, Lease, environment
from bayou.leases.leases import LeaseGroup, LeaseInfo, Leases, open_leases
from bayou.leases.objects import COMMIT, STORE, model_key

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
