"""Retention: how long data stays, and what is collected once somebody asks for it."""

from bayou.data.retention.gc import GcPlan, plan_gc, run_gc

__all__ = ["GcPlan", "plan_gc", "run_gc"]
