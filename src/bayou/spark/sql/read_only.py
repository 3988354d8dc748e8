"""The first check of a statement: it must be a query that only reads (V15, V23).

Bayou splits the statement into tokens (`lexer`) and refuses what a query could do besides reading the views: scripts,
functions of Java, files, names made from text. It sends the remaining tokens in parentheses of its own, where Spark's
grammar allows only a query: no command and no INSERT. `plan_check` then checks the plan that Spark made. Besides
queries, only a few fixed forms of SHOW and DESCRIBE are allowed.

A query may call the functions of Spark 4.3 that compute from their arguments. They are listed as allowed, because a
server can have functions of its own, and the next Spark will have new ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from bayou.core.errors import QueryInvalid
from bayou.core.text import did_you_mean
from bayou.spark.sql.lexer import Token, spell, tokenize
from bayou.spark.sql.views import VIEWS

_DENIED = """
reflect java_method try_reflect
from_avro to_avro schema_of_avro from_protobuf to_protobuf
from_xml schema_of_xml
xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
python_worker_logs
"""
DENIED = frozenset(_DENIED.split())
"""Functions of Spark that do more than compute: they call Java, read a schema from a file or URL that an option names,
fetch the DTD that a document names (all of `xpath`), or show logs. They are refused anywhere, also in a plan."""

TYPED = {"from_json": 2, "from_csv": 2, "variant_get": 3, "try_variant_get": 3}
"""Functions that take the name of a type, with the number of that argument. A type written as JSON can name any class
of the server, which Spark instantiates, and any class of Python, whose module the client imports."""
TYPE_MAKERS = frozenset({"schema_of_json", "schema_of_csv", "schema_of_variant"})
"""Functions that return the name of a type, never as JSON."""

_ALLOWED = """
abs acos acosh add_months aes_decrypt aes_encrypt aggregate any any_value approx_count_distinct approx_percentile
approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array array_agg array_append
array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip
ascii asin asinh assert_true atan atan2 atanh avg base64 bigint bin binary bit_and bit_count bit_get bit_length
bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count
bitmap_or_agg bool_and bool_or boolean bround btrim cardinality cast cbrt ceil ceiling char char_length character
character_length chr coalesce collate collation collations collect_list collect_set collect_union concat concat_ws
contains conv convert_timezone corr cos cosh cot count count_if count_min_sketch counter_diff covar_pop covar_samp
crc32 csc cume_dist curdate current_catalog current_database current_date current_path current_schema current_time
current_timestamp current_timezone current_user date date_add date_diff date_format date_from_unix_date date_part
date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear dec decimal decode degrees
dense_rank double e element_at elt encode endswith equal_null every exists exp explode explode_outer expm1 extract
factorial filter find_in_set first first_value flatten float floor forall format_number format_string from_base32
from_csv from_json from_unixtime from_utc_timestamp geography geometry get get_json_object getbit greatest grouping
grouping_id hash hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg hmac hour hypot if
ifnull initcap inline inline_outer input_file_block_length input_file_block_start input_file_name instr int
is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull jaro_winkler_similarity json_array_length
json_object_keys json_table json_tuple kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least left len length levenshtein
listagg ln localtime localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check make_date
make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8
make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys
map_values map_zip_with mask max max_by md5 mean measure median min min_by minute mod mode
monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day now nth_value ntile
nullif nullifzero numeric nvl nvl2 octet_length overlay parse_json parse_url percent_rank percentile
percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow power
printf quarter quote radians raise_error rand randn random randstr range rank reduce regexp_count regexp_extract
regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count
regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right rint round row_number rpad
rtrim schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg sec second sentences sequence
session_user session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned shuffle sign signum sin sinh size
skewness slice smallint some sort_array soundex space spark_partition_id split split_part sql_keywords sqrt
st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith std stddev stddev_pop stddev_samp
str_to_map string string_agg struct substr substring substring_index sum tan tanh theta_difference
theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg time
time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
time_to_seconds time_trunc timediff timestamp timestamp_ltz timestamp_micros timestamp_millis timestamp_nanos
timestamp_ntz timestamp_seconds timestampadd timestampdiff tinyint to_base32 to_binary to_char to_csv to_date
to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp
to_varchar to_variant_object to_xml transform transform_keys transform_values translate trim trunc try_add
try_aes_decrypt try_avg try_cast try_divide try_element_at try_make_interval try_make_timestamp
try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract try_sum
try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
try_variant_array_append try_variant_get try_variant_insert try_variant_set tuple_difference_double
tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_agg_double
tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double
tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer
tuple_union_theta_double tuple_union_theta_integer typeof ucase unbase64 unhex uniform unix_date unix_micros
unix_millis unix_nanos unix_seconds unix_timestamp unnest upper url_decode url_encode user uuid validate_utf8
var_pop var_samp varchar variance variant variant_array_append variant_delete variant_explode variant_explode_outer
variant_get variant_insert variant_set variant_strip_nulls vector_avg vector_cosine_similarity vector_inner_product
vector_l2_distance vector_norm vector_normalize vector_sum version weekday weekofyear width_bucket window
window_time xxhash64 year zeroifnull zip_with
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Functions and types that may precede a parenthesis."""

_HINT = "data is looked at with SELECT, WITH, VALUES, SHOW, DESCRIBE and EXPLAIN only"
_VIEWS_HINT = f"a query reads the views {', '.join(VIEWS)}"
_QUERIES = frozenset({"select", "with", "values", "from", "table", "("})
_MODES = frozenset({"extended", "codegen", "cost", "formatted"})
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_TYPE = re.compile(r"[^{\\]*")

_VIEW = f"(?:{'|'.join(VIEWS)})"
_DESCRIBE = "desc(?:ribe)?"
_COMMAND = re.compile(
    rf"""
    show\ (?:views|tables|(?:(?:user|system|all)\ )?functions) (?:\ (?:like\ )?'')?
    | show\ columns\ (?:in|from)\ {_VIEW}
    | {_DESCRIBE}\ (?:table\ )?(?:(?:extended|formatted)\ )?{_VIEW}(?:\ \w+)?(?:\ as\ json)?
    | {_DESCRIBE}\ function\ (?:extended\ )?\w+
    """,
    re.VERBOSE,
)
"""The allowed forms of SHOW and DESCRIBE, as `_outline` writes them."""

_CLAUSE_WORDS = """
with select values where group having order sort cluster distribute window qualify limit offset
union except minus intersect
"""
_CLAUSES = frozenset(_CLAUSE_WORDS.split())
"""Words that begin a clause in which a comma does not separate relations."""
_PARENTHESIS_WORDS = """
select with from where having by group sets cube rollup limit offset values table lateral join on using over window
qualify as in and or not is like ilike rlike regexp between exists any some all escape case when then else div
distinct except union intersect minus pivot unpivot for nulls tablesample system bernoulli repeatable percent within
filter interval columns extend aggregate set of recursive only match_condition
"""
_BEFORE_PARENTHESIS = frozenset(_PARENTHESIS_WORDS.split())
"""Keywords that a parenthesis may follow without a call."""
_WITH_FROM = frozenset({"extract", "trim", "substr", "substring", "overlay"})
"""Functions with a FROM between their arguments."""

_BEFORE_RELATION = frozenset({"from", "join", "lateral", "stream", "table", "values"})
_SET_OPERATORS = frozenset({"union", "except", "minus", "intersect"})


class Question(Struct, frozen=True):
    """A statement that only reads: a query in parentheses, EXPLAIN or DESCRIBE of a query, or a command without one."""

    command: str
    query: str | None

    @property
    def statement(self) -> str:
        """The statement as Bayou sends it."""
        return self.command if self.query is None else f"{self.command} {self.query}".lstrip()


def parse_read_only(text: str, parameters: Mapping[str, Any] | None = None) -> Question:
    """Return a statement in the form to send; raise `QueryInvalid` if it does more than read."""
    tokens = tokenize(text)
    while tokens and tokens[-1].is_sign(";"):
        tokens.pop()
    if _COMMAND.fullmatch(_outline(tokens)):
        return Question(spell(tokens), None)
    command, query = _split(tokens)
    first = next((token for token in query if not token.is_sign("(")), None)
    if first is None or (first.word or first.text[0]) not in _QUERIES:
        named = first is not None and first.word
        raise QueryInvalid(f"{named.upper()} is no query" if named else "there is no query", hint=_HINT)
    _Reader(query, parameters or {}).check()
    return Question(spell(command), f"({spell(query)})")


def _outline(tokens: Sequence[Token]) -> str:
    """Return a statement in lower case with blanks between tokens, '' for each text and ` for each unusual name."""
    return " ".join(map(_outline_of, tokens))


def _outline_of(token: Token) -> str:
    if token.kind == "text":
        return "''"
    return token.identifier if _PLAIN_NAME.fullmatch(token.identifier) else token.text[0]


def _split(tokens: Sequence[Token]) -> tuple[list[Token], Sequence[Token]]:
    """Split a statement into EXPLAIN or DESCRIBE, if there is one, and the query."""
    words = [token.word for token in tokens[:3]] + [""] * 3
    if words[0] == "explain":
        size = 2 if words[1] in _MODES else 1
    elif words[0] in ("describe", "desc"):
        size = 2 if words[1] == "query" else 1
        if len(tokens) > size and (tokens[size].word or tokens[size].text[0]) not in _QUERIES:
            raise QueryInvalid("that cannot be described", hint=f"DESCRIBE {'|'.join(VIEWS)}, or a query")
    elif words[0] == "show":
        raise QueryInvalid("that cannot be shown", hint="SHOW VIEWS, FUNCTIONS, or COLUMNS IN a view")
    else:
        size = 0
    return list(tokens[:size]), tokens[size:]


class _Level(Struct):
    """The state inside one pair of parentheses: the word before it, the current clause, where a relation was read."""

    opener: str = ""
    clause: str = ""
    relation_next: bool = False
    relation_at: int = -1


class _Reader:
    """Read a query once from left to right, and raise `QueryInvalid` for anything that does more than read."""

    def __init__(self, tokens: Sequence[Token], parameters: Mapping[str, Any]) -> None:
        self._tokens = tokens
        self._parameters = parameters
        self._levels = [_Level()]
        self._in_hint = False
        self._separators = _separators(tokens)

    def check(self) -> None:
        for at, token in enumerate(self._tokens):
            if token.kind == "sign":
                self._sign(at, token.text)
                continue
            if token.word:
                self._word(at, token.word)
            if self._levels[-1].relation_next and token.word not in _BEFORE_RELATION:
                self._relation(at, token)
            if token.identifier and self._is_sign(at + 1, "("):
                self._call(at, token.identifier)
        if len(self._levels) > 1 or self._in_hint:
            raise QueryInvalid("a parenthesis or a hint is not closed")

    def _sign(self, at: int, sign: str) -> None:
        level = self._levels[-1]
        match sign:
            case "(":
                before = self._tokens[at - 1].identifier if at else ""
                # A relation may be in parentheses, nested to any depth.
                inside = _Level(before, "from", True) if level.relation_next else _Level(before)
                level.relation_next = False
                self._levels.append(inside)
            case ")":
                self._levels.pop()
                if not self._levels:
                    raise QueryInvalid("a parenthesis is closed that was never opened")
            case ";":
                raise QueryInvalid("that is more than one statement", hint="ask one question at a time")
            case ",":
                level.relation_next = level.clause == "from"
            case "|>":
                level.clause, level.relation_next = sign, False
            case "/*+" | "*/":
                if self._in_hint == (sign == "/*+"):
                    raise QueryInvalid(f"a {sign} is out of place")
                self._in_hint = not self._in_hint

    def _word(self, at: int, word: str) -> None:
        level, after = self._levels[-1], self._tokens[at + 1] if at + 1 < len(self._tokens) else None
        following = after.word if after is not None else ""
        if word == "insert" and following in ("into", "overwrite"):
            raise QueryInvalid("INSERT is no query", hint=f"{_HINT}; a column of that name needs quotes")
        if word == "using" and not self._is_sign(at + 1, "("):
            # SELECT TRANSFORM(…), MAP and REDUCE run scripts; all of them need USING and a text.
            raise QueryInvalid("a query runs no script (USING)", hint="JOIN … USING takes columns in parentheses")
        begins = level.clause == "" or level.relation_next
        if word in _CLAUSES:
            # FROM t WITH (…) begins no list of named queries, and FROM VALUES (…), t goes on with relations.
            if (word != "with" or begins) and (word != "values" or not level.relation_next):
                level.clause, level.relation_next = word, False
        elif (
            word == "join"
            or (word == "from" and not self._is_part_of_expression(at, level))
            or (word == "table" and (begins or level.clause == "with" or level.clause in _SET_OPERATORS))
        ):
            level.clause, level.relation_next = "from", True

    def _is_part_of_expression(self, at: int, level: _Level) -> bool:
        """Return whether a FROM is that of `extract(day FROM x)` or of `a IS DISTINCT FROM b`."""
        before = [token.word for token in self._tokens[max(0, at - 2) : at]]
        if before[-1:] == ["distinct"] and before[:1] in (["is"], ["not"]):
            return True
        return level.opener in _WITH_FROM and level.clause == "" and not self._is_sign(at - 1, "(")

    def _relation(self, at: int, token: Token) -> None:
        """Check a relation: a view, a named part of the query, or a function, each by a plain, unqualified name."""
        level = self._levels[-1]
        level.relation_next, level.relation_at = False, at
        end = self._end_of_identifier(at) if token.word == "identifier" and self._is_sign(at + 1, "(") else at + 1
        if self._is_sign(end, "."):
            raise QueryInvalid(f"{token.text}. … is neither a view nor a part of this query", hint=_VIEWS_HINT)

    def _call(self, at: int, name: str) -> None:
        level, opening = self._levels[-1], at + 1
        if name == "identifier" and self._tokens[at].kind == "word":
            name = self._named(at)
            opening = self._end_of_identifier(at)
            if not self._is_sign(opening, "("):
                return
        if name in DENIED:
            raise QueryInvalid(f"a query may not call {name}", hint="it can do more than compute")
        if self._in_hint:
            return
        if at and self._is_sign(at - 1, "."):
            raise QueryInvalid(f"a query may not call … .{name}", hint="functions have plain names, as in upper(name)")
        if self._tokens[at].word in _BEFORE_PARENTHESIS or self._names_columns(at, level):
            return
        if name not in ALLOWED:
            raise QueryInvalid(
                f"there is no function {name} that a query may call",
                hint=did_you_mean(name, ALLOWED, "SHOW FUNCTIONS lists those of Spark"),
            )

        if name in TYPED:
            self._require_plain_type(name, self._argument(opening, TYPED[name]))

    def _require_plain_type(self, name: str, argument: Sequence[Token]) -> None:
        """Refuse a type that is computed or written as JSON."""
        value: object = None
        match argument:
            case []:  # Spark reports that the argument is missing
                return
            case [Token(kind="text", text=text)]:
                value = text[1:-1]
            case [colon, marker] if colon.is_sign(":"):
                value = self._parameters.get(marker.text)
            case [maker, opening, *_] if maker.word in TYPE_MAKERS and opening.is_sign("("):
                return
        if not isinstance(value, str) or not _PLAIN_TYPE.fullmatch(value):
            raise QueryInvalid(f"the type for {name} is no plain text", hint="write it as in 'a INT, b ARRAY<STRING>'")

    def _argument(self, opening: int, number: int) -> Sequence[Token]:
        """Return the tokens of an argument of a call, counted from 1; empty if there are fewer arguments."""
        edges = [opening, *self._separators.get(opening, [])]
        return self._tokens[edges[number - 1] + 1 : edges[number]] if number < len(edges) else []

    def _names_columns(self, at: int, level: _Level) -> bool:
        """Return whether `name (…)` is no call, but names the columns of a part of the query: `AS t (a, b)`."""
        if level.clause == "with" or (at and self._tokens[at - 1].word == "as"):
            return True
        return level.clause == "from" and (self._is_sign(at - 1, ")") or 0 <= level.relation_at == at - 1)

    def _named(self, at: int) -> str:
        """Return the name that IDENTIFIER(…) stands for: one plain name, given as text or by a parameter."""
        inside = self._tokens[at + 2 : at + 4]
        if len(inside) == 2 and inside[0].is_sign(":") and self._is_sign(at + 4, ")"):
            value = self._parameters.get(inside[1].text)
        elif inside and inside[0].kind == "text" and self._is_sign(at + 3, ")"):
            value = inside[0].text[1:-1]
        else:
            value = None
        if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):
            _refuse_identifier()
        return value.lower()

    def _end_of_identifier(self, at: int) -> int:
        """Return the position after IDENTIFIER('name') or IDENTIFIER(:name)."""
        return at + (5 if self._is_sign(at + 2, ":") else 4)

    def _is_sign(self, at: int, text: str) -> bool:
        return 0 <= at < len(self._tokens) and self._tokens[at].is_sign(text)


def _separators(tokens: Sequence[Token]) -> dict[int, list[int]]:
    """Return, for each opening parenthesis or bracket, the positions of the commas of its level and of its end."""
    found: dict[int, list[int]] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.kind != "sign":
            continue
        if token.text in ("(", "["):
            opened.append(at)
            found[at] = []
        elif token.text in (",", ")", "]") and opened:
            found[opened[-1]].append(at)
            if token.text != ",":
                opened.pop()
    return found


def _refuse_identifier() -> NoReturn:
    raise QueryInvalid("IDENTIFIER(…) takes one plain name", hint="IDENTIFIER('data') or IDENTIFIER(:name)")
