"""Spark SQL over what a repo has: `data`, `versions`, `outputs`, `runs` and `entries`.

Rows come from the catalog and from base, read by workers part by part. A Python data source is always asked for all its
columns, so content is no column of a source: it is a function in the views, which Spark drops from a query that does
not use it.
"""
