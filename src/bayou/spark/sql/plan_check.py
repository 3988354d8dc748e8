"""The second check of a query: the plan that Spark made of it must only read Bayou's views (V15, V23).

The server may have settings and functions that Bayou does not know. So this check is a list of what is allowed: each
node of the analysed plan must be of a kind that reads only the views of this session, or rows that the query itself
makes. Bayou refuses a query whose plan does not show that.

Spark prints a plan as text, in which the query's own literals and names appear unescaped. Three things keep a literal
from hiding a node. A random word, which the query cannot know, marks the beginning and the end of the analysed plan.
Spark begins each node on a line of its own, after the lines of the tree; a literal can add such lines, and so have its
query refused, but it cannot remove one. And the root, the only node without such lines, is Bayou's own.
"""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bayou.core.errors import QueryInvalid
from bayou.spark.sql.read_only import DENIED
from bayou.spark.sql.views import VIEWS

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_SETTINGS = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    # Spark must print the whole plan: an omitted part could hold anything.
    "spark.sql.debug.maxToStringFields": str(2**31 - 1),
    "spark.sql.maxPlanStringLength": str(2**31 - 16),
}

_NODE_NAMES = """
Aggregate CTERelationDef CTERelationRef Deduplicate Distinct Except Expand Filter Generate GlobalLimit Intersect Join
LateralJoin LocalLimit LocalRelation MapInArrow Offset OneRowRelation PipeOperator Project Range RebalancePartitions
Repartition RepartitionByExpression ResolvedHint Sample Sort SubqueryAlias Union UnionLoop UnionLoopRef View Window
WithCTE
"""
_NODES = frozenset(_NODE_NAMES.split())
"""Nodes that read their children or make rows. `MapInArrow` is in Bayou's views; SQL has no syntax for it."""

_END = "bayou_end"
_BEGINNING = re.compile(rf" AS {_END}#\d+\]\n[ :]*\+- OneRowRelation\n\n== Analyzed Logical Plan ==\n")
_NODE = re.compile(r"^(?:[: ]  )*[:+]- ([A-Za-z]*)(.*)$", re.MULTILINE)
_OUR_VIEW = re.compile(rf" \(`(?:{'|'.join(VIEWS)})`, \[")
_CALL = re.compile(rf"\b({'|'.join(sorted(DENIED))})\(", re.IGNORECASE)
_CLASS = re.compile(r"(?:UDT|UserDefinedType)@|\bpythonuserdefined\b")
_LEFT_OUT = re.compile(r"\.\.\. \d+ more fields")


def restrict_session(spark: SparkSession) -> None:
    """Set the options that keep queries of a session from files and server variables, as far as the server allows."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of options that this server does not let a client set; `check_plan` decides then
        spark.conf._set_all({**_SETTINGS}, silent=True)


def require_read_only(spark: SparkSession, query: str, parameters: Mapping[str, Any]) -> None:
    """Raise `QueryInvalid` unless the plan of a query, given in parentheses, shows that it only reads Bayou's views."""
    word = secrets.token_hex(16)
    marked = f"SELECT * FROM {query} LEFT SEMI JOIN (SELECT '{word}' AS {_END}) ON true"
    check_plan(to_frame(spark, marked, parameters)._explain_string(extended=True), word)


def to_frame(spark: SparkSession, query: str, parameters: Mapping[str, Any]) -> DataFrame:
    """Return a query as a relation. `spark.sql` would send a command, which the server runs at once."""
    from pyspark.sql.connect import functions as sql  # noqa: PLC0415
    from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415
    from pyspark.sql.connect.plan import SQL  # noqa: PLC0415

    return DataFrame(SQL(query, [], {name: sql.lit(value) for name, value in parameters.items()}, []), spark)


def check_plan(plan: str, word: str) -> None:
    """Raise `QueryInvalid` unless an explained plan, marked by `word`, shows a query that only reads Bayou's views."""
    parts = plan.split(word)
    analysed = parts[1] if len(parts) > 2 else ""
    beginning = _BEGINNING.match(analysed)
    if beginning is None:
        raise _refusal("its plan cannot be read")
    _check_tree(analysed[beginning.end() :])


def _check_tree(tree: str) -> None:
    nodes: Iterable[tuple[str, str]] = _NODE.findall(tree)
    for name, rest in nodes:
        if name not in _NODES:
            raise _refusal(f"its plan has {name or rest[:40]!s}")
        if name == "View" and not _OUR_VIEW.match(rest):
            raise _refusal("it reads a view that is not Bayou's")
    if called := _CALL.search(tree):
        raise _refusal(f"its plan names {called[1]}(…)")
    if _CLASS.search(tree):
        raise _refusal("its plan has a type that is a class of the server")
    if _LEFT_OUT.search(tree):
        raise _refusal("its plan is not shown whole")


def _refusal(why: str) -> QueryInvalid:
    return QueryInvalid(
        f"it cannot be shown that this query only reads: {why}", hint=f"a query reads the views {', '.join(VIEWS)}"
    )
