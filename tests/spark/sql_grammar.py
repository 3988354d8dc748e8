"""Random Spark SQL: queries that only read, and statements that have something else in them, spelled in every way.

A statement is made as a list of tokens and spelled afterwards, with blanks and comments of all kinds between them: so a
test knows what a lexer has to find.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Tokens = list[str]

BLANKS = [" ", "\n", "\t", "\r\n", "\f", "\x0b", "\u00a0", "\u2003", "\u2028", "\u3000"]
COMMENTS = [
    *(
        "/**/",
        "/* /* */ */",
        "/* /*+ */",
        "/*'*/",
        '/*"*/',
        "/*`*/",
        "/*--*/",
        "/* /* /**/ */ ; */",
        "/*\\*/",
        "/*/**/*/",
    ),
    *("-- so\n", "--\n", "-- '\n", "-- /*\n", "-- it goes on \\\n to here\n", "-- a\r", "--;\n"),
]
LITERALS = [
    *("''", "'a'", "'it''s'", "'\\''", "'\\\\'", '"a"', '"\\""', "r'\\'", 'R"\\"', "'a' 'b'", "'--'", "'/*'", "'*/'"),
    *("'SELECT TRANSFORM(x) USING sh'", "'; DROP VIEW data; --'", "') x; INSERT INTO y ('", '"text.`/etc/passwd`"'),
    *("'$.total'", "'%${{ x }}%'", "r'^a${'", "'java_method'", "'\\n'", "'\u00e9\u017f'", "'-- \\\\'", "'`'", '"\'"'),
]
NUMBERS = ["0", "1", "2.5", ".5", "1e3", "1E-3", "7L", "1.5BD", "3S", "2D"]
COLUMNS = ["name", "size", "d.size", "`by`", "`a b`", "`x``y`", "tags", "NAME", "_x1", "`SELECT`", "`text.``/p```"]
FUNCTIONS = [
    "abs",
    "upper",
    "COALESCE",
    "count",
    "get_json_object",
    "If",
    "`length`",
    "left",
    "max",
    "concat_ws",
    "string",
]
VIEWS = ["data", "versions", "outputs", "runs", "entries", "DATA", "`data`"]

CALLS: list[Tokens] = [
    *([name, "(", "'java.lang.System'", ",", "'getenv'", ")"] for name in ("reflect", "java_method", "try_reflect")),
    *(["`reflect`", "(", "'a'", ")"], ["REFLECT", "(", "'a'", ")"], ['"reflect"', "(", "'a'", ")"]),
    ["system", ".", "builtin", ".", "reflect", "(", "'a'", ")"],
    ["`system`", ".", "`builtin`", ".", "`java_method`", "(", "'a'", ")"],
    ["builtin", ".", "abs", "(", "1", ")"],
    ["IDENTIFIER", "(", "'reflect'", ")", "(", "'java.lang.System'", ")"],
    ["IDENTIFIER", "(", "'ref'", "||", "'lect'", ")", "(", "1", ")"],
    ["IDENTIFIER", "(", "'ref'", "'lect'", ")", "(", "1", ")"],
    ["IDENTIFIER", "(", ":unbound", ")", "(", "1", ")"],
    ["xpath_string", "(", "'<!DOCTYPE a SYSTEM \"http://127.0.0.1/\"><a/>'", ",", "'a'", ")"],
    [
        "from_xml",
        "(",
        "'<a/>'",
        ",",
        "'a INT'",
        ",",
        "map",
        "(",
        "'rowValidationXSDPath'",
        ",",
        "'/etc/passwd'",
        ")",
        ")",
    ],
    *(
        ["from_protobuf", "(", "x", ",", "'m'", ",", "'/p'", ")"],
        ["from_avro", "(", "x", ")"],
        ["a_udf", "(", "1", ")"],
    ),
    *(["ai_query", "(", "'m'", ",", "'x'", ")"], ["http_get", "(", "'http://127.0.0.1'", ")"]),
    ["from_json", "(", "'1'", ",", '\'{"type": "udt", "class": "java.util.Random"}\'', ")"],
    ["from_json", "(", "'1'", ",", "'\\u007b'", ")"],
    ["from_json", "(", "'1'", ",", "'{\"type\":'", "'...'", ")"],
    ["from_csv", "(", "'1'", ",", "concat", "(", "'{'", ",", "'}'", ")", ",", "map", "(", ")", ")"],
    ["`try_variant_get`", "(", "f", "(", "1", ",", "[", "2", "]", ")", ",", "'$'", ",", "c", ")"],
    ["IDENTIFIER", "(", "'from_json'", ")", "(", "'1'", ",", ":unbound", ")"],
    ["(", "SELECT", "TRANSFORM", "(", "1", ")", "USING", "'sh -c id'", ")"],
    ["(", "SELECT", "1", "FROM", "text", ".", "`/etc/passwd`", ")"],
    *(["re\u017flect", "(", "1", ")"], ["\uff52eflect", "(", "1", ")"], ["1E+5reflect", "(", "1", ")"]),
]
"""Expressions that do more than compute."""

RELATIONS: list[Tokens] = [
    *(
        [kind, ".", "`/etc/passwd`"]
        for kind in ("text", "binaryFile", "csv", "`json`", "PARQUET", "`org.a.TextFormat`")
    ),
    *(["text", ".", "`passwd`"], ["text", ".", "passwd"], ['"text"', ".", '"/etc/passwd"'], ["global_temp", ".", "x"]),
    *(
        ["spark_catalog", ".", "default", ".", "t"],
        ["(", "text", ".", "`/p`", ")"],
        ["(", "(", "text", ".", "`/p`", ")", ")"],
    ),
    *(["IDENTIFIER", "(", "'text.`/etc/passwd`'", ")"], ["IDENTIFIER", "(", "'a'", ")", ".", "`/etc/passwd`"]),
    *(["IDENTIFIER", "(", "'te'", "||", "'xt'", ")"], ["IDENTIFIER", "(", "concat", "(", "'a'", ")", ")"]),
    *(["read_files", "(", "'/etc'", ")"], ["python_worker_logs", "(", ")"], ["`read_files`", "(", "'/etc'", ")"]),
    *(
        ["STREAM", "text", ".", "`/p`"],
        ["LATERAL", "reflect", "(", "'a'", ")"],
        ["file:///etc/passwd"],
        ["s3://b/k--x"],
    ),
    *(["TABLE", "(", "read_files", "(", "'/etc'", ")", ")"], ["VALUES", "(", "1", ")", "t", ",", "text", ".", "`/p`"]),
    ["(", "SELECT", "TRANSFORM", "(", "a", ")", "USING", "'sh'", "AS", "b", "FROM", "data", ")"],
    ["(", "SELECT", "TRANSFORM", "(", "a", ")", "USING", ":script", "FROM", "data", ")"],
    ["(", "SELECT", "TRANSFORM", "(", "a", ")", "ROW", "FORMAT", "DELIMITED", "USING", "r'sh'", "FROM", "data", ")"],
    *(["(", "FROM", "data", kind, "name", "USING", '"sh"', ")"] for kind in ("MAP", "REDUCE")),
    ["(", "WITH", "trim", "(", "SELECT", "1", "FROM", "text", ".", "`/p`", ")", "SELECT", "1", "FROM", "trim", ")"],
    ["(", "TABLE", "text", ".", "`/p`", ")"],
    ["(", "SELECT", "1", "UNION", "TABLE", "text", ".", "`/p`", ")"],
]
"""Relations that are no view."""

_STATEMENTS = """\
DROP VIEW data
INSERT INTO t SELECT 1
INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT 1
SET a = 1
RESET
SET VAR x = 1
CREATE TABLE t AS SELECT 1
CREATE TEMPORARY FUNCTION f AS 'x' USING JAR '/x'
ADD JAR '/x'
ADD FILE '/x'
DELETE FROM data
UPDATE data SET a = 1
MERGE INTO data USING x ON true WHEN MATCHED THEN DELETE
TRUNCATE TABLE data
ALTER VIEW data AS SELECT 1
CACHE TABLE data
REFRESH 'file:/x'
LOAD DATA INPATH '/x' INTO TABLE t
USE x
CALL p ( )
EXECUTE IMMEDIATE 'DROP VIEW data'
BEGIN SELECT 1 ; END
DECLARE x = 1
ANALYZE TABLE data COMPUTE STATISTICS
WITH a AS ( SELECT 1 ) INSERT INTO t SELECT 1
FROM data INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT name
FROM data INSERT INTO t SELECT 1 INSERT INTO u SELECT 2
MAP name USING 'sh' FROM data
REDUCE name USING 'sh' FROM data
EXPLAIN DROP VIEW data
EXPLAIN EXTENDED INSERT INTO t SELECT 1
EXPLAIN EXPLAIN SELECT 1
DESCRIBE text . `/etc/passwd`
DESCRIBE QUERY INSERT INTO t SELECT 1
DESCRIBE spark_catalog . default . t
DESCRIBE `table data`
SHOW CREATE TABLE data
SHOW TABLES IN other
SHOW PARTITIONS t
SHOW TBLPROPERTIES data
SHOW COLUMNS IN text . `/x`
SELECT 1 ; DROP VIEW data
SELECT 1 ) x ; INSERT INTO y ( SELECT 1
SELECT 1 ) UNION ( SELECT 2
SELECT ( 1
( SELECT 1
SELECT 1 )
SELECT $$x$$
SELECT $a$x$a$
\u017felect 1
SELECT `${env:HOME}`
EXPORT TABLE t TO '/x'
LIST JARS
DFS -ls /
!ls
SELECT * FROM data@v1
KILL 1
COMMENT ON TABLE data IS 'x'
UNCACHE TABLE data
MSCK REPAIR TABLE t
FETCH c INTO x
OPEN c
RETURN 1
data
data d JOIN runs r
1
'select 1'
`select` 1
:sql
? 1
GRANT x TO y
COMMIT
;
( )
"""
STATEMENTS: list[Tokens] = [line.split(" ") for line in _STATEMENTS.splitlines()]
"""Statements that are no query, or no statement."""

UNCLOSED = [
    "SELECT '${env:HOME}",
    "SELECT 1 /*",
    "SELECT 1 /* /* */",
    "SELECT 'a",
    "SELECT `a",
    'SELECT "a\\"',
    "SELECT 1 -- x\r)",
]
"""What has no end, whatever follows."""


class Grammar:
    """Makes queries. `poison` is used once, in place of an expression (`calls`) or a relation, if it is given."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._depth = 0

    def query(self) -> Tokens:
        """Return a query that only reads."""
        return self._nested(
            self._select,
            self._select,
            self._with,
            self._set_operation,
            self._from_first,
            self._pipe,
            self._table,
            self._values,
        )

    def poisoned(self) -> Tokens:
        """Return a query that does more: one expression or relation in it, wherever, is a bad one."""
        calls = self.random.random() < 0.5
        bad = self.random.choice(CALLS if calls else RELATIONS)
        for _ in range(50):
            made = self.query()
            spots = [at for at, token in enumerate(made) if token == ("1" if calls else "runs")]
            spots = [
                at for at in spots if calls or (at and made[at - 1] in ("FROM", "JOIN", "TABLE", "(", ",", "from"))
            ]
            if not calls:
                spots = [at for at in spots if self._is_relation(made, at)]
            if spots:
                at = self.random.choice(spots)
                if made[at - 1] == "TABLE" and bad[0] in ("(", "STREAM", "LATERAL", "TABLE", "VALUES", "read_files"):
                    continue
                return [*made[:at], *bad, *made[at + 1 :]]
        return ["SELECT", *bad, "AS", "x"] if calls else ["SELECT", "*", "FROM", *bad]

    def spell(self, tokens: Tokens) -> str:
        """Write tokens as a text, with blanks and comments between them, and before and after."""
        pieces = [self._gap(False)]
        for before, token in zip(["", *tokens], tokens, strict=False):
            gap = self._gap(_touch(before, token))
            if gap[:1] in ("/", "-") and before[-1:] in ("/", "*", "-"):
                gap = f" {gap}"  # or the two would be another sign
            pieces += [gap, token]
        return "".join([*pieces, "\n", self._gap(False)])

    def _is_relation(self, made: Tokens, at: int) -> bool:
        return made[at - 1].upper() in ("FROM", "JOIN", "TABLE")

    def _gap(self, needed: bool) -> str:
        kind = self.random.random()
        if kind < 0.6:
            return " " if needed else self.random.choice(["", " "])
        if kind < 0.8:
            return self.random.choice(BLANKS)
        comment = self.random.choice(COMMENTS)
        return comment + self._gap(False) if kind < 0.85 else comment

    def _nested(self, *ways: Callable[[], Tokens]) -> Tokens:
        self._depth += 1
        try:
            return (ways[0] if self._depth > 4 else self.random.choice(ways))()
        finally:
            self._depth -= 1

    def _maybe(self, *tokens: str | Callable[[], Tokens], chance: float = 0.4) -> Tokens:
        if self._depth > 3 or self.random.random() > chance:
            return []
        return [one for token in tokens for one in ([token] if isinstance(token, str) else token())]

    def _list(self, make: Callable[[], Tokens]) -> Tokens:
        made = make()
        for _ in range(self.random.randrange(3) if self._depth < 4 else 0):
            made += [",", *make()]
        return made

    def _select(self) -> Tokens:
        return [
            self.random.choice(["SELECT", "select", "Select"]),
            *self._maybe("/*+", "BROADCAST", "(", "d", ")", ",", "REPARTITION", "(", "3", ")", "*/", chance=0.15),
            *self._maybe("DISTINCT", chance=0.2),
            *self._list(self._column),
            *self._maybe("FROM", self._relations, chance=0.9),
            *self._maybe("WHERE", self._expression),
            *self._maybe("GROUP", "BY", lambda: self._list(self._expression), chance=0.2),
            *self._maybe("HAVING", self._expression, chance=0.1),
            *self._maybe("ORDER", "BY", lambda: self._list(self._expression), self._direction),
            *self._maybe("LIMIT", "10", chance=0.2),
        ]

    def _direction(self) -> Tokens:
        return self._maybe("DESC", "NULLS", "LAST")

    def _column(self) -> Tokens:
        if self.random.random() < 0.15:
            return ["*", *self._maybe("EXCEPT", "(", "content", ")")]
        return [*self._expression(), *self._maybe("AS", self.random.choice(["a", "`b c`", "total"]))]

    def _with(self) -> Tokens:
        named = [
            "WITH",
            *self._maybe("RECURSIVE", chance=0.2),
            "a",
            *self._maybe("(", "x", ",", "y", ")"),
            "AS",
            "(",
            *self.query(),
            ")",
        ]
        named += self._maybe(",", "more", "(", "z", ")", "AS", "(", self.query, ")")
        return [*named, *self._select()]

    def _set_operation(self) -> Tokens:
        kind = self.random.choice([["UNION"], ["UNION", "ALL"], ["EXCEPT"], ["INTERSECT"], ["MINUS"]])
        return ["(", *self.query(), ")", *kind, *self._nested(self._select, self._table)]

    def _from_first(self) -> Tokens:
        return ["FROM", *self._relations(), "SELECT", *self._list(self._column)]

    def _pipe(self) -> Tokens:
        steps = [
            ["|>", "WHERE", *self._expression()],
            ["|>", "EXTEND", *self._expression(), "AS", "e"],
            ["|>", "SELECT", *self._list(self._column)],
            ["|>", "AGGREGATE", "count", "(", "*", ")", "AS", "c", "GROUP", "BY", *self._expression()],
            ["|>", "ORDER", "BY", "d", ".", "size", ",", "d", ".", "name"],
            ["|>", "JOIN", *self._relation(), "USING", "(", "name", ")"],
        ]
        return ["FROM", *self._relation(), *self.random.choice(steps), *self.random.choice(steps)]

    def _table(self) -> Tokens:
        return ["TABLE", self.random.choice(VIEWS)]

    def _values(self) -> Tokens:
        return ["VALUES", "(", "1", ",", *self._literal(), ")", ",", "(", "2", ",", *self._literal(), ")"]

    def _relations(self) -> Tokens:
        made = self._list(self._relation)
        how = self.random.choice(
            [["USING", "(", "name", ",", "version", ")"], ["ON", *self._expression()], ["ON", "(", "true", ")"]]
        )
        made += self._maybe(*self.random.choice([["LEFT"], ["CROSS"], ["FULL", "OUTER"]]), "JOIN", self._relation, *how)
        return made + self._maybe("LATERAL", "VIEW", "explode", "(", "tags", ")", "t", "AS", "k", ",", "v", chance=0.2)

    def _relation(self) -> Tokens:
        return self._nested(
            lambda: [self.random.choice([*VIEWS, "runs", "runs", "runs"]), *self._maybe(*self._alias())],
            lambda: ["(", *self.query(), ")", *self._alias()],
            lambda: [
                "VALUES",
                "(",
                "1",
                ",",
                *self._literal(),
                ")",
                ",",
                "(",
                "2",
                ",",
                "'b'",
                ")",
                "AS",
                "v",
                "(",
                "p",
                ",",
                "q",
                ")",
            ],
            lambda: ["range", "(", "3", ")", *self._maybe("r", "(", "n", ")")],
            lambda: ["(", *self._relation(), ")"],
            lambda: ["IDENTIFIER", "(", "'data'", ")"],
            lambda: ["LATERAL", "(", *self._select(), ")", "l"],
            lambda: ["unnest", "(", "array", "(", "1", ",", "2", ")", ")", "u", "(", "w", ")"],
        )

    def _alias(self) -> Tokens:
        return self.random.choice([["d"], ["AS", "d"], ["`d e`"]])

    def _literal(self) -> Tokens:
        return [self.random.choice(LITERALS)] if self.random.random() < 0.6 else [self.random.choice(NUMBERS)]

    def _expression(self) -> Tokens:
        one = self._expression
        return self._nested(
            self._literal,
            self._literal,
            lambda: ["1"],
            lambda: [self.random.choice(COLUMNS)],
            lambda: ["d", ".", "size"],
            lambda: [self.random.choice(FUNCTIONS), "(", *self._list(one), ")"],
            lambda: ["(", *one(), ")"],
            lambda: [
                *one(),
                self.random.choice(["+", "-", "*", "/", "||", "=", "<=>", "<>", "AND", "OR", "DIV", "%"]),
                *one(),
            ],
            lambda: ["-", *one()],
            lambda: ["CASE", "WHEN", *one(), "THEN", *one(), "ELSE", *one(), "END"],
            lambda: ["CAST", "(", *one(), "AS", "decimal", "(", "10", ",", "2", ")", ")"],
            lambda: ["size", "IN", "(", *self.query(), ")"],
            lambda: ["NOT", "EXISTS", "(", *self.query(), ")"],
            lambda: ["extract", "(", "YEAR", "FROM", "d", ".", "created_at", ")"],
            lambda: ["trim", "(", "BOTH", "'x'", "FROM", "d", ".", "name", ")"],
            lambda: ["a", "IS", "NOT", "DISTINCT", "FROM", "d", ".", "size"],
            lambda: ["tags", "[", "'env'", "]"],
            lambda: ["transform", "(", "array", "(", *one(), ")", ",", "x", "->", *one(), ")"],
            lambda: [
                "reduce",
                "(",
                "array",
                "(",
                "1",
                ")",
                ",",
                "0",
                ",",
                "(",
                "x",
                ",",
                "y",
                ")",
                "->",
                "x",
                "+",
                "y",
                ")",
            ],
            lambda: ["map", "(", "'a'", ",", *one(), ")"],
            lambda: ["sum", "(", "size", ")", "OVER", "(", "PARTITION", "BY", *one(), "ORDER", "BY", *one(), ")"],
            lambda: ["count", "(", "*", ")", "FILTER", "(", "WHERE", *one(), ")"],
            lambda: [*one(), "BETWEEN", *one(), "AND", *one()],
            lambda: ["DATE", "'2026-01-02'"],
            lambda: [":name"],
            lambda: [*one(), "::", "string"],
        )


def _touch(before: str, token: str) -> bool:
    """Say whether two tokens need a blank between them, or would be others."""
    if not before:
        return False
    if before[-1] in "'\"`" and token[0] in "'\"`rR":
        return True
    joined = before[-1] + token[0]
    return (
        all(one.isalnum() or one in "_.$" for one in joined)
        or joined in _PAIRS
        or (before[-1].isalnum() and token[0] in "'\"")
    )


_PAIRS = {"--", "/*", "*/", "||", "|>", "->", "::", "<=", "=>", "<>", "==", ">=", ">>", "<<", "!=", "-.", "&&"}
