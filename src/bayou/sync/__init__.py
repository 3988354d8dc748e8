"""Sync between a tree and a store: plan, transfer, commit, conflicts, and the service for the rest of the program."""
