"""Decision tables: hit policies, what is recorded, and what is refused at the declaration and at the decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest

from ductor_stream import App, Row, TerminalError, Verdict
from ductor_stream.errors import CalledOutsideStep, InvalidDefinition
from ductor_stream.rules.table import MAX_ROWS
from ductor_stream.rules.verdict import find_verdict


@dataclass
class Customer:
    tier: str
    country: str = "CH"


@dataclass
class Order:
    total: float
    customer: Customer
    items: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass
class Discount:
    rate: float
    reason: str = "none"


GOLD = Order(120.0, Customer("gold"), ["pen"])
BASIC = Order(20.0, Customer("basic"), ["pen", "ink"])

ROWS = [
    Row("gold", {"tier": 'customer.tier == "gold"'}, {"rate": "0.1", "reason": '"gold in " + customer.country'}),
    Row("large", {"amount": "total > 100.0", "items": "size(items) > 0"}, {"rate": "0.05"}),
]


def table(rows: list[Row] | None = None, **how: Any) -> Any:
    how = {"input": Order, "output": Discount, **how}
    return App("t").decision_table("discount", rows=ROWS if rows is None else rows, **how)


def error_of(rule: Any, facts: Any) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        rule(facts)
    return caught.value


def test_first_takes_the_first_row_that_hits_and_says_why() -> None:
    rule = table(hit="first", version="7")
    verdict = rule.decide(GOLD)
    assert rule(GOLD) == verdict.value == Discount(0.1, "gold in CH")
    assert (verdict.rule, verdict.version, verdict.policy) == ("discount", "7", "first")
    assert [hit.row for hit in verdict.hits] == ["gold"]
    assert verdict.why() == 'discount version 7: row gold hit (tier: customer.tier == "gold")'


def test_unique_refuses_two_rows_that_hit_at_once() -> None:
    rule = table()
    assert rule(Order(1.0, Customer("gold"))) == Discount(0.1, "gold in CH")
    assert rule(Order(101.0, Customer("basic"), ["pen"])) == Discount(0.05)
    error = error_of(rule, GOLD)
    assert (error.type, error.details) == ("RowsOverlap", {"rows": ["gold", "large"]})
    assert "decision table 'discount' version 1: rows gold, large" in str(error)


def test_collect_gives_all_that_hit_in_the_order_of_the_rows() -> None:
    rule = table(hit="collect")
    assert rule(GOLD) == [Discount(0.1, "gold in CH"), Discount(0.05)]
    assert rule(BASIC) == []
    assert rule.decide(BASIC).why() == "discount version 1: no row hit"


@pytest.mark.parametrize("policy", ["unique", "first"])
def test_no_hit_is_an_error_unless_there_is_a_default_row(policy: str) -> None:
    assert error_of(table(hit=policy), BASIC).type == "NoRowHit"
    rule = table([*ROWS, Row("standard", default=True, then={"rate": "0"})], hit=policy)
    assert rule(BASIC) == Discount(0.0)
    assert [hit.row for hit in rule.decide(BASIC).hits] == ["standard"]


def test_under_first_later_rows_are_not_looked_at() -> None:
    rows = [Row("always", then={"rate": "1.0"}), Row("rest", default=True, then={"rate": "2.0"})]
    assert table(rows, hit="first")(GOLD).rate == 1.0
    broken = Row("broken", {"x": "items[7] == 'pen'"}, {"rate": "1.0"})
    assert table([ROWS[0], broken], hit="first")(GOLD).rate == 0.1
    assert error_of(table([broken, ROWS[0]], hit="first"), GOLD).type == "RuleError"


def test_an_error_at_the_decision_names_table_row_and_column() -> None:
    rule = table([Row("deep", {"seventh": "items[7] == 'pen'"}, {"rate": "1.0"})])
    error = error_of(rule, GOLD)
    assert (error.type, error.details) == ("RuleError", {"row": "deep", "column": "seventh"})
    assert "decision table 'discount' version 1: row 'deep', column 'seventh': " in str(error)
    assert "items[7]" in str(error)


def test_a_verdict_is_recorded_and_found_again() -> None:
    rule = table(hit="first")
    raw = rule.encode_output(rule.decide(GOLD))
    found = find_verdict(raw)
    assert found is not None
    assert (found.value, found.digest) == ({"rate": 0.1, "reason": "gold in CH"}, rule.digest)
    assert msgspec.json.decode(raw, type=Verdict[Discount]).value == Discount(0.1, "gold in CH")
    assert find_verdict(b'{"rate":0.1}') is None
    assert find_verdict(b'"ductor.verdict"') is None
    assert find_verdict(None) is None


def test_what_is_recorded_has_the_defaults_of_the_output() -> None:
    """A replay must give what was decided, whatever the class has as its default by then."""
    rule = table(hit="first")
    raw = rule.encode_output(rule.decide(Order(101.0, Customer("basic"), ["pen"])))
    assert msgspec.json.decode(raw)["value"] == {"rate": 0.05, "reason": "none"}


def test_the_digest_is_that_of_the_content() -> None:
    assert table().digest == table(version="2").digest
    assert table().digest != table(hit="first").digest
    assert table().digest != table(ROWS[:1]).digest


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            Row("r", {"c": "totl > 1.0"}, {"rate": "1.0"}),
            "row 'r', column 'c': line 1, character 1: undeclared reference",
        ),
        (Row("r", {"c": "totl > 1.0"}, {"rate": "1.0"}), "customer.tier, items, note, total"),
        (Row("r", {"c": "customer.teir == 'x'"}, {"rate": "1.0"}), "undeclared reference to 'customer.teir'"),
        (Row("r", {"c": "total > "}, {"rate": "1.0"}), "Syntax error"),
        (Row("r", {"c": "total > 1"}, {"rate": "1.0"}), "write 100.0 beside a float"),
        (Row("r", {"c": "total + 1.0"}, {"rate": "1.0"}), "a condition is true or false, `total + 1.0` gives DOUBLE"),
        (Row("r", {"c": "now() > total"}, {"rate": "1.0"}), "undeclared reference to 'now'"),
        (Row("r", {"c": ""}, {"rate": "1.0"}), "an expression is CEL in a string"),
        (Row("r", {"c": "true || " * 500 + "true"}, {"rate": "1.0"}), "2,000 are the limit"),
        (Row("r", {"c": "(" * 500 + "true" + ")" * 500}, {"rate": "1.0"}), "recursion limit"),
        (Row("r", then={}), "row 'r', column 'rate': the row has no result"),
        (Row("r", then={"rate": "1.0", "why": "1"}), "column 'why': the output has no such field; it has rate, reason"),
        (Row("r", then={"rate": "'high'"}), "column 'rate': `'high'` gives STRING, which does not fit"),
        (Row("r", then="1.0"), "then is an expression for each of rate, reason"),
        (Row("", then={"rate": "1.0"}), "each row needs a name"),
        (Row("r", {"c": "true"}, {"rate": "1.0"}, default=True), "is the default: it has no conditions"),
    ],
)
def test_what_cannot_work_is_refused_with_row_and_column(row: Row, said: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        table([row])
    assert said in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    assert "decision table 'discount': " in str(caught.value)


def test_what_cannot_work_of_a_whole_table_is_refused() -> None:
    always = Row("always", then={"rate": "1.0"})
    for rows, how, said in (
        ([], {}, "it has no rows"),
        ([always, always], {}, "each row needs a name of its own"),
        ([always, ROWS[0]], {"hit": "first"}, "row 'gold' can never hit: row 'always' before it"),
        (
            [Row("a", default=True, then={"rate": "1.0"}), Row("b", default=True, then={"rate": "1.0"})],
            {},
            "one default",
        ),
        ([Row(str(n), then={"rate": "1.0"}) for n in range(MAX_ROWS + 1)], {}, "1,000 are the limit"),
        (ROWS, {"hit": "any"}, "it is one of unique, first, collect"),
        (ROWS, {"version": "a b"}, "its version"),
        (ROWS, {"input": object}, "cannot cross the wire"),
        (ROWS, {"timeuot": 3}, "did you mean 'timeout'"),
        (["gold"], {}, "rows are Row(…)"),
    ):
        with pytest.raises(InvalidDefinition, match=said.replace("(", r"\(").replace(")", r"\)")):
            table(rows, **how)  # type: ignore[arg-type]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Facts(TypedDict):
    n: int
    x: float
    text: str
    flag: bool
    raw: bytes
    at: datetime
    lasts: timedelta
    on: date
    price: Decimal
    id: UUID
    colour: Colour
    tags: set[str]
    counts: dict[str, int]
    lines: list[Customer]
    maybe: int | None
    type: str
    huge: Any


FACTS: Facts = {
    "n": 3,
    "x": 1.5,
    "text": "é😀",
    "flag": True,
    "raw": b"ab",
    "at": datetime(2030, 5, 1, 12, tzinfo=UTC),
    "lasts": timedelta(minutes=90),
    "on": date(2030, 5, 1),
    "price": Decimal("12.50"),
    "id": UUID(int=7),
    "colour": Colour.RED,
    "tags": set("hgfedcba"),
    "counts": {"pen": 2},
    "lines": [Customer("gold"), Customer("basic")],
    "maybe": None,
    "type": "card",
    "huge": 1,
}


@pytest.mark.parametrize(
    "text",
    [
        "n + 1 == 4 && n in [1, 2, 3]",
        "x * 2.0 == 3.0 && double(n) > x",
        "size(text) == 2 && text.startsWith('é') && text.matches('^.+$')",
        "flag && !false",
        "raw == b'ab'",
        "at > timestamp('2030-01-01T00:00:00Z') && at.getHours('Europe/Zurich') == 14",
        "lasts < duration('2h') && at + lasts == timestamp('2030-05-01T13:30:00Z')",
        "on == '2030-05-01'",
        "double(price) == 12.5",
        "id == '00000000-0000-0000-0000-000000000007'",
        "colour == 'red'",
        "tags == ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']",
        "counts.pen == 2 && 'ink' in counts == false && counts['pen'] == 2",
        "lines.exists(line, line.tier == 'gold') && lines.filter(line, line.tier == 'x').size() == 0",
        "maybe == null || maybe > 3",
        "facts.type == 'card'",
        "huge == 1",
    ],
)
def test_values_of_python_in_cel(text: str) -> None:
    rule = App("t").expression("ask", text, input=Facts, output=bool)
    assert rule(FACTS) is True
    assert rule.decide(FACTS).why() == f"ask version 1: {text}"


@dataclass(frozen=True)
class Line:
    sku: str
    pieces: int = 1


@dataclass
class Basket:
    lines: list[Line]
    first: Line
    note: str | None = None


def test_defaults_that_json_did_not_have_are_facts_too() -> None:
    text = "note == null && first.pieces == 1 && lines.all(line, line.pieces == 1)"
    rule = App("t").expression("ask", text, input=Basket, output=bool)
    facts = rule.decode_input(b'[{"lines": [{"sku": "a"}], "first": {"sku": "b"}}]')
    assert rule(*facts) is True


def test_values_of_cel_in_python() -> None:
    @dataclass
    class Out:
        at: datetime
        lasts: timedelta
        price: Decimal
        colour: Colour
        raw: bytes
        line: Customer
        numbers: list[int]
        x: float

    then = {
        "at": "at + duration('1h')",
        "lasts": "duration('1m')",
        "price": "'7.10'",
        "colour": "'blue'",
        "raw": "b'xy'",
        "line": "{'tier': text}",
        "numbers": "lines.map(line, size(line.tier))",
        "x": "n",
    }
    out = App("t").decision_table("all", rows=[Row("r", then=then)], input=Facts, output=Out)(FACTS)
    assert out == Out(
        datetime(2030, 5, 1, 13, tzinfo=UTC), timedelta(minutes=1), Decimal("7.10"), Colour.BLUE, b"xy",
        Customer("é😀"), [4, 5], 3.0,
    )  # fmt: skip


def test_a_result_that_does_not_fit_is_said_with_its_path() -> None:
    rule = table([Row("r", then={"rate": "1.0", "reason": "items[0] == 'pen' ? dyn(1) : dyn('a')"})])
    error = error_of(rule, GOLD)
    assert error.type == "RuleError"
    assert "then.reason: Expected `str`, got `int`" in str(error)


def test_a_table_without_columns_of_results_gives_one_value() -> None:
    rule = App("t").decision_table(
        "rate", rows=[Row("large", {"amount": "facts > 100.0"}, "0.1"), Row("rest", default=True, then="0.0")],
        input=float, output=float,
    )  # fmt: skip
    assert (rule(101.0), rule(1.0)) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (Order(1.0, Customer("x" * 70_000)), "FactsTooLarge"),
        (Order(1.0, Customer("gold"), ["x"] * 1_001), "FactsTooLarge"),
    ],
)
def test_facts_beyond_the_bounds_are_an_error(facts: Order, kind: str) -> None:
    error = error_of(table(hit="first"), facts)
    assert error.type == kind
    assert "are the limit" in str(error)


def test_a_number_beyond_64_bits_is_an_error_of_the_rule() -> None:
    rule = App("t").expression("ask", "facts > 1", input=int, output=bool)
    assert error_of(rule, 2**70).type == "RuleError"


def test_an_expression_that_would_take_for_ever_is_broken_off() -> None:
    deep = "items.all(a, items.all(b, items.all(c, items.all(d, a + b + c + d != ''))))"
    error = error_of(table([Row("r", {"c": deep}, {"rate": "1.0"})]), Order(1.0, Customer("x"), ["x"] * 1_000))
    assert error.type == "RuleError"
    assert "budget" in str(error)


def test_an_expression_is_refused_where_it_cannot_give_the_output() -> None:
    app = App("t")
    with pytest.raises(InvalidDefinition, match="gives INT, which does not fit the output"):
        app.expression("ask", "1 + 1", input=Order, output=bool)
    with pytest.raises(InvalidDefinition, match="expression 'ask': line 1, character 1: undeclared reference to 'y'"):
        app.expression("ask", "y", input=Order, output=bool)
    assert app.steps == {}


def test_a_rule_is_not_called_directly_in_a_workflow() -> None:
    import asyncio

    from ductor_stream import Run
    from ductor_stream.testing import TestEnv
    from ductor_stream.testing.env import Stuck

    app = App("t")
    rule = app.decision_table("discount", rows=ROWS, input=Order, output=Discount, hit="first")

    @app.workflow
    async def wrong(run: Run) -> float:
        return rule(GOLD).rate

    async def check() -> None:
        async with TestEnv(app) as env:
            handle = await env.start(wrong)
            with pytest.raises(Stuck, match="await run.step"):
                await handle.result()

    asyncio.run(check())
    assert CalledOutsideStep.code == "called_outside_step"


def test_without_the_extra_the_declaration_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cel_expr_python.cel", None)
    with pytest.raises(InvalidDefinition, match=r"pip install 'ductor-stream\[rules\]'"):
        table()
