"""What a commit has brought about, told once it has landed: lines of the runs' own logs, ends, suspensions, metrics."""

from __future__ import annotations

from collections import Counter

from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.planners import LogLine
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_CLOSED = frozenset({"completed", "failed", "cancelled", "terminated", "timed_out"})
_REASON_CHARS = 200
_TAKEN = frozenset({"event", "run_id"})
"""Names that the logger has for itself: a field of that name gets an underscore behind it."""


def tell(prepared: Prepared, metrics: Metrics) -> None:
    """Write the log lines of this commit and count what it did."""
    for run_id, lines in prepared.lines.items():
        for line in lines:
            _write(run_id, line)
    for run_id, workflow, action in prepared.lifecycles:
        _run(run_id, workflow, action, metrics)
    metrics.batch_size.observe(prepared.events)
    finished = Counter(row.outcome for row in prepared.batch.attempts if row.phase == "finished")
    for outcome, count in finished.items():
        metrics.attempts_finished[outcome].inc(count)
    sent = sum(map(len, prepared.sync.values()))
    if sent:
        metrics.attempts_dispatched["syncmatch"].inc(sent)
    dispatched = sum(row.phase == "dispatched" for row in prepared.batch.attempts)
    if dispatched > sent:
        metrics.attempts_dispatched["kafka"].inc(dispatched - sent)


def _write(run_id: str, line: LogLine) -> None:
    """A line of the run's own log. Whatever stands in its fields: what has landed has still to be dispatched (R5, R11)."""
    level, message, fields = line
    own = {f"{name}_" if name in _TAKEN else name: value for name, value in fields.items()}
    try:
        getattr(_log, level)(message, run_id=run_id, **own)
    except Exception as error:  # noqa: BLE001 - the __str__ of a field is the user's
        _log.warning("a line of the run's log cannot be written", run_id=run_id, problem=type(error).__name__)


def _run(run_id: str, workflow: str, action: EmitLifecycle, metrics: Metrics) -> None:
    kind = action.type.removeprefix("run.")
    if kind == "started":
        metrics.runs_started.inc()
    elif kind == "suspended":
        code = action.reason.partition(":")[0]
        metrics.runs_suspended[code].inc()
        # What does not fit is told with the inputs of steps: for those who may read the run, `runs show` does.
        reason = code if code == "nondeterminism" else _line(action.reason)
        _log.warning("run suspended", run_id=run_id, workflow=workflow, reason=reason)
    elif kind == "resumed":
        metrics.runs_resumed.inc()
    elif kind in _CLOSED:
        metrics.runs_closed[kind].inc()
        failure = action.failure
        if failure is not None:
            reason = _line(f"{failure.type}: {failure.message}")
            _log.warning(f"run {kind}", run_id=run_id, workflow=workflow, code=failure.code, reason=reason)


def _line(text: str) -> str:
    """Its first line: what a person needs to look further; details and stacks are in the run."""
    return text.partition("\n")[0][:_REASON_CHARS]
