"""Spark SQL over a repo: the views `data`, `versions`, `outputs`, `runs` and `entries`, and read-only queries on them.

Workers read the rows from the catalog and from base, part by part. Spark asks a Python data source for all its columns,
so `content` is not a column of a source but a function in the views, which Spark drops from a query that does not use
it.
"""
