"""Retention: which versions have expired, and the garbage collection that deletes them when a user asks for it."""

from bayou.data.retention.gc import GcPlan, plan_gc, run_gc

__all__ = ["GcPlan", "plan_gc", "run_gc"]
