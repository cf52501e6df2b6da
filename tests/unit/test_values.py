"""Values: what goes out comes back, the bytes are the same everywhere, and a fault names its place."""

from __future__ import annotations

import datetime
import enum
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine import values
from ductor_stream.errors import InvalidValue, PayloadTooLarge


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


class Tags(TypedDict, total=False):
    name: str
    count: int


class Leaf(msgspec.Struct, tag="leaf"):
    value: int


class Branch(msgspec.Struct, tag="branch"):
    children: list[Leaf | Branch]


class Renamed(msgspec.Struct):
    x: int = msgspec.field(name="$X")


@dataclass(frozen=True)
class Line:
    sku: str
    amount: Decimal


@dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]
    placed: datetime.datetime
    color: Color = Color.RED
    labels: frozenset[str] = frozenset()
    by_number: dict[int, str] = field(default_factory=dict)
    note: str | None = None
    raw: bytes = b""


@dataclass(frozen=True)
class Frozen:
    id: str
    count: int = 3


@attrs.frozen
class Boxed:
    size: int


finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
lines = st.builds(Line, texts, st.decimals(allow_nan=False, allow_infinity=False))
moments = st.datetimes(timezones=st.just(datetime.UTC))
orders = st.builds(
    Order,
    st.uuids(),
    st.lists(lines, max_size=3),
    moments,
    st.sampled_from(Color),
    st.frozensets(texts, max_size=4),
    st.dictionaries(st.integers(), texts, max_size=3),
    st.none() | texts,
    st.binary(max_size=20),
)
trees = st.recursive(
    st.builds(Leaf, st.integers()), lambda inner: st.builds(Branch, st.lists(inner, max_size=3)), max_leaves=8
)
typed = st.one_of(
    st.tuples(st.just(Order), orders),
    st.tuples(st.just(Leaf | Branch), trees),
    st.tuples(st.just(int), st.integers()),
    st.tuples(st.just(float), finite),
    st.tuples(st.just(str), texts),
    st.tuples(st.just(bytes), st.binary()),
    st.tuples(st.just(Decimal), st.decimals(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(Level), st.sampled_from(Level)),
    st.tuples(st.just(Point), st.builds(Point, st.integers(), finite)),
    st.tuples(st.just(Tags), st.fixed_dictionaries({}, optional={"name": texts, "count": st.integers()})),
    st.tuples(st.just(set[int | None]), st.sets(st.none() | st.integers())),
    st.tuples(st.just(set[Color]), st.sets(st.sampled_from(Color))),
    st.tuples(st.just(frozenset[Line]), st.frozensets(lines, max_size=4)),
    st.tuples(st.just(dict[uuid.UUID, list[int]]), st.dictionaries(st.uuids(), st.lists(st.integers()), max_size=3)),
    st.tuples(st.just(datetime.timedelta), st.timedeltas(max_value=datetime.timedelta(days=10**6))),
    st.tuples(st.just(datetime.date), st.dates()),
    st.tuples(st.just(tuple[int, ...]), st.lists(st.integers()).map(tuple)),
    st.tuples(st.just(bool | None), st.none() | st.booleans()),
    st.tuples(st.just(Literal["a", 1]), st.sampled_from(["a", 1])),
)


@given(typed)
def test_what_goes_out_comes_back(case: tuple[Any, Any]) -> None:
    type_, value = case
    values.check(value, type_)
    assert values.decode(values.encode(value), type_) == value


@given(typed)
def test_the_same_value_gives_the_same_bytes(case: tuple[Any, Any]) -> None:
    type_, value = case
    again = values.decode(values.encode(value), type_)
    assert values.encode(again) == values.encode(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | finite | texts,
        lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    )
)
def test_any_json_is_a_value(value: Any) -> None:
    raw = values.encode(value)
    # Integers beyond 2**53 become strings and stay it without a type that says otherwise.
    assert values.encode(values.decode(raw, Any)) == raw


@given(st.binary(max_size=60))
def test_hostile_bytes_raise_nothing_but_invalid_value(raw: bytes) -> None:
    for type_ in (Any, Order, int, list[str], Leaf | Branch):
        try:
            values.decode(raw, type_)
        except InvalidValue:
            continue


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    with pytest.raises(InvalidValue, match="recursion"):
        values.decode(b"[" * 100_000, Any)
    circular: list[Any] = []
    circular.append(circular)
    with pytest.raises(InvalidValue, match="^value: list is nested too deeply, or contains itself$"):
        values.encode(circular)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":[', b"]}")])
def test_a_value_is_nested_two_hundred_levels_deep_and_no_deeper(opening: bytes, closing: bytes) -> None:
    times = 200 // sum(map(opening.count, (b"[", b"{")))
    # Many others beside the deepest one, and brackets in a string, which count for nothing.
    deepest = b"[[],{}," + opening * (times - 1) + b'"[' + b'{"' + closing * (times - 1) + b"]"
    raw = deepest if len(opening) == 1 else b"[" + deepest + b"]"
    assert values.limited(raw, "view") is raw
    with pytest.raises(InvalidValue, match=r"^view is nested more than 200 levels deep$"):
        values.limited(b"[" + raw + b"]", "view")
    with pytest.raises(InvalidValue, match="nested"):
        values.limited(opening * times + b"[" + b"]" + closing * times, "view")


def test_a_value_of_so_many_bytes_is_taken_and_none_longer() -> None:
    raw = b"1" * values.MAX_VALUE_BYTES
    assert values.limited(raw, "view") is raw
    with pytest.raises(
        PayloadTooLarge, match=r"^view has 900,001 bytes, 900,000 are the limit: pass a reference to it$"
    ):
        values.limited(raw + b"1", "view")


def test_bytes_do_not_depend_on_the_process() -> None:
    """String hashes are seeded: sets come in another order in each process, a replay must not."""
    program = (
        "from dataclasses import dataclass; from ductor_stream.engine.values import encode\n"
        "@dataclass(frozen=True)\nclass P:\n    a: str\n    b: frozenset\n"
        "words = frozenset('alpha beta gamma delta epsilon'.split())\n"
        "print(encode([{P(w, words) for w in words}, words, {1, 'x', None}, {frozenset(words): 1} if 0 else {'b': 1, 'a': 2}]))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        ({10: "x", 9: "y"}, b'{"10":"x","9":"y"}'),
        (Decimal("1.10"), b'"1.10"'),
        (2**53, b"9007199254740992"),
        (2**53 + 1, b'"9007199254740993"'),
        ([-(2**70)], b'["-1180591620717411303424"]'),
        ({"a": {"deep": 2**60}}, b'{"a":{"deep":"1152921504606846976"}}'),
        (["9007199254740993", 0.1234567890123456789], b'["9007199254740993",0.12345678901234568]'),
        (Level.HIGH, b"2"),
        (Leaf(2**60), b'{"type":"leaf","value":"1152921504606846976"}'),
        (Boxed(2**60), b'{"size":"1152921504606846976"}'),
        (Frozen("a", -(2**60)), b'{"id":"a","count":"-1152921504606846976"}'),
        ([True, None, 1.5, "b", b"", 2**53, 2**60], b'[true,null,1.5,"b","",9007199254740992,"1152921504606846976"]'),
        ({1, "x", None}, b'["x",1,null]'),
        (frozenset({5, 2**60}), b'["1152921504606846976",5]'),
        ({"10": "a", 1: "b"}, b'{"1":"b","10":"a"}'),
        (MappingProxyType({"b": 1, "a": 2**60}), b'{"a":"1152921504606846976","b":1}'),
        (b"\x00\xff", b'"AP8="'),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), b'"2026-01-02T03:04:05Z"'),
    ],
)
def test_forms(value: Any, raw: bytes) -> None:
    assert values.encode(value) == raw


def test_a_long_integer_is_taken_as_a_number_too() -> None:
    assert values.decode(b'{"a":1152921504606846976}', dict[str, int]) == {"a": 2**60}
    assert values.decode(b'{"a":"1152921504606846976"}', dict[str, int]) == {"a": 2**60}
    assert values.decode(b'{"5":"1152921504606846976"}', dict[int, int]) == {5: 2**60}
    # A text of digits stays a text where a text is expected.
    assert values.decode(b'["1152921504606846976","1152921504606846976"]', tuple[str, int]) == (str(2**60), 2**60)
    with pytest.raises(InvalidValue, match=r"value\[0\]: Expected `int`, got `str`"):
        values.decode(b'["115"]', list[int])


class Paid(msgspec.Struct):
    id: int
    amount: Decimal = Decimal(0)
    rate: float = 0.0
    ok: bool = False
    note: str = ""
    reference: uuid.UUID | None = None


def test_beside_a_long_integer_all_else_is_read_as_ever() -> None:
    """Else a field's meaning depended on whether another has sixteen digits."""
    body = b'{"id":"1152921504606846976","amount":12345678901234567.89,"rate":1.5,"note":"4111111111111111"}'
    paid = Paid(2**60, Decimal("12345678901234567.89"), 1.5, note="4111111111111111")
    assert values.decode(body, Paid) == paid
    assert values.decode(values.encode(paid), Paid) == paid
    for wrong in (b'"ok":"false"', b'"rate":"1.5"', b'"ok":0'):
        with pytest.raises(InvalidValue, match=r"Expected `(int|bool|float)`"):
            values.decode(body[:-1] + b"," + wrong + b"}", Paid)
    with pytest.raises(InvalidValue, match="Expected `int`"):
        values.decode(b'{"id":"5","note":"4111111111111111"}', Paid)
    given = {"id": str(2**60), "reference": str(uuid.UUID(int=7))}
    assert values.decode(msgspec.json.encode(given), Paid) == Paid(2**60, reference=uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([{"a": object()}], r"value\[0\]\['a'\]: object cannot be written as JSON"),
        (Order(uuid.uuid4(), [], datetime.datetime.now(datetime.UTC), note=1j), r"value\.note: complex"),  # type: ignore[arg-type]
        ({(1, 2): 3}, r"value: dict cannot be written"),
        ([MappingProxyType({"a": 1}), {1: object()}], r"^value\[1\]\[1\]: object cannot be written"),
        ({"a": {object()}}, r"^value\['a'\]\[0\]: object cannot be written as JSON \(no JSON form for object\)$"),
        ("\ud800", "surrogates not allowed"),
        ({"x": [1.0, float("nan")], "y": None}, r"value\['x'\]\[1\]: JSON has no NaN"),
        ([None, Point(1, float("inf"))], r"value\[1\]\[1\]: JSON has no NaN"),
    ],
)
def test_a_value_that_cannot_be_written_names_its_place(value: Any, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        values.encode(value)


@pytest.mark.parametrize(
    ("raw", "type_", "problem"),
    [
        (b'{"sku":"a","amount":"x"}', Line, r"^order\.amount: Invalid decimal"),
        (b'[{"sku":"a","amount":1},{"sku":2,"amount":1}]', list[Line], r"^order\[1\]\.sku: Expected `str`, got `int`"),
        (b'{"a":"x"}', dict[str, int], r"^order\[\.\.\.\]: Expected `int`"),
        (b'{"x":1}', dict[int, int], r"^a key of order: Expected `int`"),
        (b"1", str, r"^order: Expected `str`, got `int`"),
        (b"nonsense", str, r"^order: JSON is malformed"),
        (b'"\xff"', str, r"^order: "),
        (b'{"$X":"1"}', Renamed, r"^order\.\$X: Expected `int`"),
        (b"300", Annotated[int, msgspec.Meta(le=9)], r"^order: Expected `int` <= 9"),
    ],
)
def test_a_value_that_does_not_fit_names_its_place(raw: bytes, type_: Any, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        values.decode(raw, type_, "order")


@pytest.mark.parametrize(("error", "problem"), [(KeyError("x"), "^order: 'x'$"), (KeyError(), "^order: KeyError$")])
def test_a_class_that_raises_while_it_is_built_is_an_invalid_value(error: Exception, problem: str) -> None:
    @dataclass
    class Picky:
        name: str

        def __post_init__(self) -> None:
            raise error

    with pytest.raises(InvalidValue, match=problem):
        values.decode(b'{"name":"x"}', Picky, "order")


def test_check_wants_what_the_annotation_says() -> None:
    values.check(3, float)
    values.check(Order(uuid.uuid4(), [], datetime.datetime.now(datetime.UTC)), Order)
    for value, type_ in [(True, int), ("1", int), (1.5, int), (None, str), ([1], list[str])]:
        with pytest.raises(InvalidValue, match="^value"):
            values.check(value, type_)


class Plain:
    pass


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        (Plain, r"^Plain cannot cross the wire: use a dataclass, a msgspec.Struct or a plain type$"),
        (set[frozenset[str]], "^a set of sets cannot cross the wire in a fixed order: use a list of sets$"),
        (list[Plain], "^Plain cannot cross the wire: use"),
        (dict[str, Plain | None], "^Plain cannot cross the wire: use"),
        (int | Plain, "cannot cross the wire"),
        ("Order", "cannot cross the wire: "),
        (Line | Order, r"Line \| .*Order cannot cross the wire: Type unions may not contain more than one dataclass"),
    ],
)
def test_types_that_cannot_cross_the_wire(type_: Any, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        values.decoder_for(type_)


def test_types_are_looked_through_once_even_when_they_are_recursive_or_unhashable() -> None:
    values.decoder_for(Branch)
    assert values.decode(b"1", Annotated[int, {"un": "hashable"}]) == 1


# -- defaults -------------------------------------------------------------------------------


@dataclass
class Plain:
    id: str
    count: int = 3
    tags: list[str] = field(default_factory=list)


@dataclass
class AllLeft:
    count: int = 3


@dataclass(slots=True)
class Slotted:
    id: str
    count: int = 3


class Record(msgspec.Struct):
    id: str
    part: Frozen
    count: int = 3


@pytest.mark.parametrize(
    ("type", "short", "whole"),
    [
        (Plain, b'{"id":"a"}', b'{"count":3,"id":"a","tags":[]}'),
        (Frozen, b'{"id":"a"}', b'{"count":3,"id":"a"}'),
        (AllLeft, b"{}", b'{"count":3}'),
        (Slotted, b'{"id":"a"}', b'{"count":3,"id":"a"}'),
        (Record, b'{"id":"a","part":{"id":"b"}}', b'{"count":3,"id":"a","part":{"count":3,"id":"b"}}'),
        (list[Frozen | None], b'[null,{"id":"a"}]', b'[null,{"count":3,"id":"a"}]'),
        (dict[str, tuple[Frozen, ...]], b'{"x":[{"id":"a"}]}', b'{"x":[{"count":3,"id":"a"}]}'),
        (frozenset[Frozen], b'[{"id":"a"}]', b'[{"count":3,"id":"a"}]'),
    ],
)
def test_what_is_read_is_passed_on_with_its_defaults(type: Any, short: bytes, whole: bytes) -> None:
    """A workflow hands its input to a step: the step gets what the workflow's code saw, in the one form of that value."""
    value = values.decode(short, type)
    assert msgspec.json.decode(values.encode(value)) == msgspec.json.decode(whole)
    assert values.encode(value) == values.encode(values.decode(whole, type))
    assert value == values.decode(whole, type)
