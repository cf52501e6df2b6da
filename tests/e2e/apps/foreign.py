"""An app whose steps are done by others: ``examples/plain_worker.py``, which knows nothing but the page of the wire."""

from __future__ import annotations

from typing import Any

from ductor_stream import App, Run

app = App("foreign")
approved = app.signal("approved", bool)
charge = app.external_step("charge", queue="payments", input=dict[str, Any], output=str)
echo = app.external_step("echo", queue="payments", input=Any, output=list[Any])


@app.workflow
async def fulfil(run: Run, order: dict[str, Any]) -> list[Any]:
    """Charged, approved, echoed."""
    receipt = await run.step(charge, order)
    ok = await run.wait_signal(approved)
    return [receipt, ok, *await run.step(echo, order["name"])]
