"""Queries of data in CEL: SQL narrows the catalog's rows down, and CEL decides about each row that is left."""

from bayou.data.query.query import QueryResult, query

__all__ = ["QueryResult", "query"]
