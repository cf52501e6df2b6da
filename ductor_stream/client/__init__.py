"""The client's side: start, signal, command, and wait for what becomes of a run.

It must not import an adapter: Kafka and Postgres are given to it by ``wiring`` through ``client.ports``.
"""
