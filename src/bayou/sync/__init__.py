"""Reconciling a tree with a store."""
