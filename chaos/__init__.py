"""Chaos on the real thing: three brokers, a replicated Postgres, processes under load, faults drawn by a seed.

Recorders keep what clients and steps saw; the checks (``checks.py``) decide from those and from Postgres alone, and know
no fault. ``python -m chaos --minutes 5`` runs it (docs/chaos.md).
"""
