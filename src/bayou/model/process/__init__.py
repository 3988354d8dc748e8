"""Processes that methods start: run to their end, or ended, with all that they have started."""

from bayou.model.process.excerpt import Excerpt
from bayou.model.process.run import Ended, run_process

__all__ = ["Ended", "Excerpt", "run_process"]
