"""Retention: how long data stays, and what is collected once somebody asks for it."""

from bayou.records.retention.gc import GcPlan, plan_gc, run_gc
from bayou.records.retention.prune import PrunePlan, plan_prune, run_prune

__all__ = ["GcPlan", "PrunePlan", "plan_gc", "plan_prune", "run_gc", "run_prune"]
