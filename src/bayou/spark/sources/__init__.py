"""Data sources of Spark: a store's listing, the entries of an index, the files of a tree.

The caller's process divides each source into parts, since it has the deadline and raises Bayou's errors; tasks only
read.
"""
