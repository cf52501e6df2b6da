"""Logs: bound keys, JSON lines, no payloads above DEBUG, and nobody else's root logger."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from ductor_stream.telemetry.logs import configure, get_logger


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    structlog.reset_defaults()
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_bound_keys_and_event_stand_in_a_json_line(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "INFO", stream)
    get_logger("ductor_stream.test", run_id="order-ü%s").bind(node_id="3").info("attempt finished", generation=2)
    line = json.loads(stream.getvalue())
    assert line["event"] == "attempt finished"
    assert (line["run_id"], line["node_id"], line["generation"]) == ("order-ü%s", "3", 2)
    assert (line["level"], line["logger"]) == ("info", "ductor_stream.test")
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_is_shown_with_its_traceback(root: logging.Logger, form: str) -> None:
    stream = io.StringIO()
    configure("json" if form == "json" else "console", "INFO", stream)
    try:
        raise KeyError("order-42")
    except KeyError:
        get_logger("ductor_stream.test").exception("boom")
    assert "KeyError" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


def test_records_of_users_come_out_in_the_same_form(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "INFO", stream)
    logging.getLogger("shop").warning("stock of %s is low", "sku-7")
    assert json.loads(stream.getvalue())["event"] == "stock of sku-7 is low"


def test_structlog_of_users_goes_the_same_way(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure("json", "INFO", stream)
    structlog.get_logger("shop").info("packed", order="a")
    assert json.loads(stream.getvalue())["order"] == "a"
    assert not capsys.readouterr().out


def test_payloads_are_shown_at_debug_only(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "DEBUG", stream)
    log = get_logger("ductor_stream.test")
    log.info("started", input={"card": "4111"}, run_id="a")
    log.debug("started", input={"card": "4111"})
    info, debug = map(json.loads, stream.getvalue().splitlines())
    assert "input" not in info
    assert debug["input"] == {"card": "4111"}


def test_without_configure_an_embedding_program_sees_ordinary_records(caplog: pytest.LogCaptureFixture) -> None:
    before = list(logging.getLogger().handlers)
    with caplog.at_level("INFO", logger="ductor_stream.test"):
        get_logger("ductor_stream.test", run_id="a").info("hello", generation=1)
    assert logging.getLogger().handlers == before
    assert caplog.messages == ["hello run_id=a generation=1"]


PACKAGE = Path(__file__).parents[3] / "ductor_stream"


def calls_of_logs() -> Iterator[tuple[str, set[str]]]:
    """Each call of a logger of a coordinator or worker: where it stands, and its keywords with the functions behind ``**``."""
    for path in [*PACKAGE.glob("coordinator/*.py"), *PACKAGE.glob("worker/*.py")]:
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log."):
                names = {each.arg or ast.unparse(each.value).partition("(")[0] for each in call.keywords}
                yield f"{path.name}:{call.lineno}", names


def test_lines_about_an_attempt_have_its_keys_and_no_others_for_the_same() -> None:
    """Who looks for a node id finds every line about it: no ``node=`` beside ``node_id=``, no step without its attempt."""
    calls = dict(calls_of_logs())
    assert sum("keys_of" in names for names in calls.values()) >= 8
    assert [place for place, names in calls.items() if names & {"node", "node_id", "generation", "run"}] == []
    assert [place for place, names in calls.items() if "step" in names and "keys_of" not in names] == []
