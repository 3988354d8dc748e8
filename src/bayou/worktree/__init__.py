"""The payload directory on this machine: safe paths, atomic journaled writes, staging of downloads, scan, hashing.

Programs change the directory through `tree.Worktree`, which journals every change (V7). A pull writes through
`staging.StagingArea`, which does not: a pull records intents instead.
"""
