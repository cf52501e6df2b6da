"""The one place where adapters meet services: clients, coordinators and workers out of an app and its settings.

Nothing here decides anything; it opens connections, checks that schema and topics fit, and hands over. This module
is empty on purpose: ``clients``, ``coordinators`` and ``workers`` are imported where one is used.
"""

from __future__ import annotations

from ductor_stream.wiring.clients import Client, SyncClient

__all__ = ["Client", "SyncClient"]
