"""Questions about data in CEL: what the catalog can tell is asked of it in SQL, and CEL judges what it answers."""

from bayou.data.query.query import QueryResult, query

__all__ = ["QueryResult", "query"]
