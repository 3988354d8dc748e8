"""The second look at a query: what Spark understood must be a plain query over Bayou's views (V15, V23).

The server can be one whose settings and functions are not ours, so nothing is taken for granted: every node of the
analysed plan must be known to read nothing but views of this session and rows that are made up. Bayou refuses a query
whose plan does not show that.

A plan is a text in which the query's own literals and names stand as they are. Three things keep those from hiding a
node. A random word, which the query cannot know, marks where the analysed plan begins and ends. Spark begins each node
on a line of its own, behind the branches of the tree; a literal can add such lines, and so have its query refused, but
take none away. And the root, the one node without branches, is Bayou's own.
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
    # A plan is shown whole, or what is left out could be anything.
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
"""Nodes that read what is below them or make up rows. `MapInArrow` is in our views; SQL has no word for it."""

_END = "bayou_end"
_BEGINNING = re.compile(rf" AS {_END}#\d+\]\n[ :]*\+- OneRowRelation\n\n== Analyzed Logical Plan ==\n")
_NODE = re.compile(r"^(?:[: ]  )*[:+]- ([A-Za-z]*)(.*)$", re.MULTILINE)
_OUR_VIEW = re.compile(rf" \(`(?:{'|'.join(VIEWS)})`, \[")
_CALL = re.compile(rf"\b({'|'.join(sorted(DENIED))})\(", re.IGNORECASE)
_CLASS = re.compile(r"(?:UDT|UserDefinedType)@|\bpythonuserdefined\b")
_LEFT_OUT = re.compile(r"\.\.\. \d+ more fields")


def restrict_session(spark: SparkSession) -> None:
    """Set what keeps queries of a session from files and from the server's variables, as far as the server lets us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be set there: the plan decides
        spark.conf._set_all({**_SETTINGS}, silent=True)


def require_read_only(spark: SparkSession, query: str, parameters: Mapping[str, Any]) -> None:
    """Raise `QueryInvalid` unless the plan of a query, which is in parentheses, shows that it only reads our views."""
    word = secrets.token_hex(16)
    marked = f"SELECT * FROM {query} LEFT SEMI JOIN (SELECT '{word}' AS {_END}) ON true"
    check_plan(to_frame(spark, marked, parameters)._explain_string(extended=True), word)


def to_frame(spark: SparkSession, query: str, parameters: Mapping[str, Any]) -> DataFrame:
    """Return a query as a relation. `spark.sql` would send it as a command, which a server runs before it answers."""
    from pyspark.sql.connect import functions as sql  # noqa: PLC0415
    from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415
    from pyspark.sql.connect.plan import SQL  # noqa: PLC0415

    return DataFrame(SQL(query, [], {name: sql.lit(value) for name, value in parameters.items()}, []), spark)


def check_plan(plan: str, word: str) -> None:
    """Raise `QueryInvalid` unless an explained plan, marked by a word, shows a query that only reads our views."""
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
