"""Publishing local changes: the push of a plan, and the compare-and-swap of the head."""
