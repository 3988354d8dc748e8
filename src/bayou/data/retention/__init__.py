"""Retention: how long data stays, and the garbage collection that a user asks for."""

from bayou.data.retention.gc import GcPlan, plan_gc, run_gc

__all__ = ["GcPlan", "plan_gc", "run_gc"]
