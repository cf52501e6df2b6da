"""``check``: each slip that breaks determinism is found at its line, and what is sound is not."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ductor_stream.cli.determinism import Finding, Reading, SourceModule, read_function, run_parameter

Call = Callable[..., tuple[int, str, str]]

HEAD = """
import asyncio, os, random, secrets, subprocess, sys, threading, time, uuid
import datetime as when
from datetime import date, datetime
from pathlib import Path
from random import randint as dice
from uuid import uuid4, uuid5, NAMESPACE_DNS
import requests
from ductor_stream import App, Run
app = App("shop")
CACHE = {}
SEEN: list[str] = []
COUNT = 0

@app.step
def charge(order): ...

ship = app.external_step("ship", queue="q", input=str, output=str)

def hash_of(order): ...
"""


def read(body: str, signature: str = "run, order") -> Reading:
    text = HEAD + f"async def fulfil({signature}):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    module = SourceModule(text, "shop.py")
    (function,) = [n for n in module.tree.body if isinstance(n, ast.AsyncFunctionDef)]
    return read_function(module, function, run_parameter(function, workflow=True))


def codes(body: str, signature: str = "run, order") -> list[str]:
    return [each.code for each in read(body, signature).findings]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("at = time.time()", "clock"),
        ("at = when.datetime.now(when.UTC)", "clock"),
        ("at = datetime.utcnow()", "clock"),
        ("at = date.today()", "clock"),
        ("clock = time.monotonic", "clock"),
        ("time.sleep(1)", "sleep"),
        ("n = random.random()", "random"),
        ("n = dice(1, 6)", "random"),
        ("n = secrets.token_hex()", "random"),
        ("n = random.Random()", "random"),
        ("n = os.urandom(8)", "random"),
        ("key = uuid.uuid4()", "uuid"),
        ("key = uuid4()", "uuid"),
        ("make(default_factory=uuid4)", "uuid"),
        ("home = os.environ['HOME']", "environment"),
        ("home = os.getenv('HOME')", "environment"),
        ("name = sys.argv[1]", "environment"),
        ("text = open('x').read()", "outside"),
        ("text = Path('x').read_text()", "outside"),
        ("names = os.listdir('.')", "outside"),
        ("answer = requests.get('http://x')", "outside"),
        ("subprocess.run(['ls'])", "outside"),
        ("thread = threading.Thread(target=order)", "threads"),
        ("x = await asyncio.to_thread(order)", "threads"),
        ("await asyncio.get_running_loop().run_in_executor(None, order)", "threads"),
        ("waits = asyncio.Future()", "future"),
        ("waits = asyncio.get_running_loop().create_future()", "future"),
        ("n = hash(order)", "hash"),
        ("n = id(order)", "hash"),
        ("CACHE[order] = 1", "global"),
        ("CACHE[order] += 1", "global"),
        ("del CACHE[order]", "global"),
        ("SEEN.append(order)", "global"),
        ("app.seen = order", "global"),
        ("for x in {'a', 'b'}: await run.step(charge, x)", "set-order"),
        ("for x in set(order): pass", "set-order"),
        ("names = list({o.name for o in order})", "set-order"),
        ("await asyncio.gather(*(run.step(charge, x) for x in set(order) - {'a'}))", "set-order"),
        ("text = ','.join(frozenset(order))", "set-order"),
        ("first = set(order).pop()", "set-order"),
        ("run.step(charge, order)", "not-awaited"),
        ("forgotten = run.step(charge, order)", "not-awaited"),
        ("run.wait_signal(order)", "not-awaited"),
        ("asyncio.sleep(5)", "not-awaited"),
        ("await charge(order)", "step-call"),
        ("await ship(order)", "step-call"),
    ],
)
def test_a_slip_is_found(line: str, code: str) -> None:
    assert codes(line) == [code]


@pytest.mark.parametrize(
    "line",
    [
        "at = run.now()",
        "n = run.random.randint(1, 6)",
        "key = run.uuid4()",
        "key = uuid5(NAMESPACE_DNS, order)",
        "later = when.timedelta(days=2)",
        "at = datetime.fromisoformat(order)",
        "name = os.path.join(order, 'x')",
        "await asyncio.sleep(5)",
        "n = random.Random(7)",
        "try: pass\nexcept requests.Timeout: pass",
        "for x in sorted({'a', 'b'}): await run.step(charge, x)",
        "for x in {1, 2}: pass",
        "n = len({o for o in order})",
        "total = sum(o for o in set(order))",
        "found = 'a' in {'a', 'b'}",
        "seen = set()\nseen.add(order)",
        "one = run.step(charge, order)\ntwo = await one",
        "task = asyncio.create_task(run.step(charge, order))\nawait task",
        "cache = {}\ncache[order] = 1",
        "n = hash_of(order)",
        "limit = CACHE.get(order)",
        "time = order\nat = time.time()",
        "stock = await asyncio.gather(*(run.step(charge, o) for o in order))",
    ],
)
def test_what_is_sound_is_not_found(line: str) -> None:
    assert codes(line) == []


def test_a_variable_that_holds_a_set_is_a_set() -> None:
    assert codes("names = set(order)\nfor name in names: pass") == ["set-order"]
    assert codes("for name in order: pass", "run, order: set[str]") == ["set-order"]
    assert codes("names = set(order)\nnames = sorted(names)\nfor name in names: pass") == []
    assert codes("done, left = await asyncio.wait(order)\nfor task in done: task.result()") == []


def test_a_global_statement_is_found_with_what_it_is_for() -> None:
    assert codes("global COUNT\nCOUNT = 1") == ["global"]


def test_a_finding_has_its_place_the_reason_and_the_remedy() -> None:
    (found,) = read("x = 1\nat = time.time()").findings
    assert found == Finding(
        "shop.py",
        HEAD.count("\n") + 3,
        10,
        "clock",
        "time.time",
        "the clock says something else at each replay",
        "use run.now()",
        "fulfil",
    )


def test_a_comment_silences_its_line() -> None:
    silenced = read("at = time.time()  # ductor: ignore (only logged)\nn = random.random()")
    assert ([each.code for each in silenced.findings], silenced.ignored) == (["random"], 1)


def test_imports_inside_the_function_count() -> None:
    assert codes("import time as t\nat = t.time()") == ["clock"]


# -- the command -------------------------------------------------------------------------------

PRICES = "import random\n\ndef price(order: str) -> int:\n    return random.randint(1, len(order))\n"
SHOP = """
from ductor_stream import App, Run
from prices import price
import prices

app = App("shop")

@app.step
def charge(order: str) -> str:
    import time
    return f"{order} {time.time()}"

def tax(order: str) -> int:
    return hash(order) % 5

@app.workflow
async def fulfil(run: Run, order: str) -> str:
    if price(order) + prices.price(order) + tax(order) > 3:
        return await run.step(charge, order)
    return "free"
"""


def test_what_a_workflow_calls_is_read_too_but_not_its_steps(call: Call, tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text(PRICES)
    (tmp_path / "shop.py").write_text(SHOP)
    code, out, _ = call("check", "shop:app", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["workflows"], found["functions"]) == (1, False, 1, 3)
    assert [(each["file"], each["line"], each["code"]) for each in found["findings"]] == [
        ("prices.py", 4, "random"),
        ("shop.py", 14, "hash"),
    ]
    code, out, _ = call("check", "shop:app")
    assert code == 1
    assert "prices.py:4:12: random.randint in price: chance falls otherwise at each replay [random]" in out
    assert "    use run.random" in out


LAZY = """
class Settings:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}: these are loaded when a setting is first used, and there are none here")

settings = Settings()
"""


def test_what_is_loaded_when_it_is_first_asked_is_no_function_of_a_workflow(call: Call, tmp_path: Path) -> None:
    """Django's settings, outside of a project's own process."""
    (tmp_path / "prices.py").write_text(PRICES)
    (tmp_path / "shop.py").write_text(LAZY + SHOP.replace("tax(order) > 3", "tax(order) > settings.LIMIT.get(3)"))
    code, out, _ = call("check", "shop:app", "--json")
    assert (code, len(json.loads(out)["findings"])) == (1, 2)


def test_sound_code_ends_with_0(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("price(order) + prices.price(order) + tax(order)", "len(order)"))
    (tmp_path / "prices.py").write_text(PRICES)
    code, out, _ = call("check", "shop:app")
    assert (code, out) == (0, "nothing found in 1 workflow(s), 1 function(s)\n")


def test_the_example_of_this_repository_is_sound(call: Call) -> None:
    orders = Path(__file__).resolve().parents[3] / "examples/orders"
    (app,) = [path for path in orders.glob("*.py") if "App(" in path.read_text()][:1]
    code, out, _ = call("check", str(app))
    assert code == 0, out
