"""``App.serve``: coordinator and workers inside somebody else's process, beside its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ductor_stream.app import App
from ductor_stream.config import Settings
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Group
from ductor_stream.wiring.serving import serving_services


async def serve(app: App, settings: Settings, queues: Sequence[str], concurrency: int) -> None:
    """Run until cancelled, then drain; raises what ended one of the services before that.

    They work in threads of their own, so that a slow callback in the caller's loop does not hold up a run.
    """
    metrics = Metrics(app=settings.topics(app.namespace).namespace)
    building = asyncio.ensure_future(asyncio.to_thread(serving_services, app, settings, metrics, queues, concurrency))
    wanted = True
    try:
        await asyncio.shield(building)
    except asyncio.CancelledError:
        # A thread cannot be cancelled: what it opens is closed by services that begin and end.
        wanted = False
        await asyncio.wait([building])
    group = Group(building.result())
    group.start()
    try:
        if not wanted:
            raise asyncio.CancelledError
        await asyncio.to_thread(group.wait)
    finally:
        # Shielded: whoever cancels twice still gets his threads back in good order.
        await asyncio.shield(asyncio.to_thread(group.stop))
