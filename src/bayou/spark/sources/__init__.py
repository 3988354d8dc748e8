"""What Spark reads: a store's listing, an index version's entries, a tree's files.

Each is cut into parts by the caller's process, which has the deadline and whose errors are ours; tasks only read.
"""
