"""Paths and versions that both sides changed: kept copies, and renumbered versions."""
