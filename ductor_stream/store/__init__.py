"""Postgres: the truth. Implements the port ``RunStore``, the migrator, and the read side for clients and the CLI.

It must not decide anything about a run, know Kafka, or let an error of the driver out.
SQL lives in ``sql/`` only.
"""
