"""How large things on the wire may be. Every number is part of the contract (``docs/wire.md``)."""

from __future__ import annotations

MAX_PAYLOAD_BYTES = 900_000
"""One user value as JSON: an input, an output, a signal's payload, an error's details."""

MAX_RECORD_BYTES = 1_000_000
"""The value of a record. A payload and its envelope fit, and with key and headers it stays below the broker's
default of 1,048,588, so that what was taken once can also be copied to the dead letters."""

MAX_DETAILS_BYTES = 16_384
"""Details of a heartbeat: they are kept for every attempt that is open."""

MAX_RUN_ID_BYTES = 512
"""A run id as UTF-8. It is the leading part of database keys, whose limit is 2,704 bytes."""

MAX_ID_BYTES = 256
"""Ids of starts, signals and commands, and node ids, as UTF-8; they stand beside a run id in database keys."""

MAX_NAME = 128
"""Names of workflows, versions, steps, queues and signals, in characters of ``[A-Za-z0-9_.-]``."""

MAX_NAMESPACE = 64
MAX_PREFIX = 32
MAX_TOPIC = 249
"""Kafka's own limit of a topic name."""

MAX_NUMBER = 2**31 - 1
"""Executions and generations: they are ``integer`` columns."""

MAX_DURATION_MS = 100 * 366 * 86_400_000
"""A century: any date that a duration leads to can be written by every client and database."""

MAX_NESTING = 200
"""Arrays and objects within each other in one record. msgspec and most JSON readers give up at about 1,000 less the
caller's own depth, which differs from process to process; a fixed number gives the same answer everywhere."""

MAX_VALUE_NESTING = MAX_NESTING - 1
"""The same for one user value: its record is an object around it."""

MAX_TASK_NESTING = 400
"""The same for a task: its input is made of values that were taken before, wrapped by a workflow."""

MAX_CONTEXT_BYTES = 8_192
"""Names and values of all headers that are carried along from a start."""

MAX_CONTEXT_HEADERS = 32

MAX_LETTER_KEY_BYTES = 16_384
"""The key of a dead letter. Far beyond any run id, and small beside the record that it must fit into."""

MAX_REASON = 1_000
"""Characters of a sentence: a command's reason, a dead letter's error. Longer ones are cut."""

MAX_WORKER = 256
"""Characters of a worker's name and of the times it reports. Longer ones are cut."""

MAX_MESSAGE = 16_384
"""Characters of an error's message. Longer ones are cut: a failure must never be lost for its length."""

MAX_STACK = 32_768
"""Characters of an error's stack. Longer ones are cut in the middle."""
