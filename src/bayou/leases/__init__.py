"""Leases: which holder may write to a model, or to the whole store, now (V13).

A lease is one small object, changed only by compare-and-swap. Leases make writers wait for each other; the safety of
the data does not depend on them, since the commit is a compare-and-swap of its own.

    leases = open_leases(repo)
    with leases.acquire(model_key(type, id), on_wait=print) as lease:
        lease.check()       # before each write: raises LeaseLost once this process no longer holds the lease
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
