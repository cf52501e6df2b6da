"""The closed sets of words of the wire contract."""

from __future__ import annotations

from typing import Final

TOPIC_OF_TYPE: Final[dict[str, str]] = {
    "run.start": "run-events",
    "run.signal": "run-events",
    "run.cancel": "run-events",
    "run.terminate": "run-events",
    "run.pause": "run-events",
    "run.resume": "run-events",
    "run.retry": "run-events",
    "run.reset": "run-events",
    "task": "tasks.<queue>",
    "attempt.finished": "attempt-results",
    "attempt.heartbeat": "attempt-results",
    "attempt.stop": "attempt-control",
    "wakeup": "wakeups",
}
"""Each type of message and the topic on which it is valid."""

ERROR_CODES: Final[frozenset[str]] = frozenset(
    {
        "user",
        "timeout_schedule_to_start",
        "timeout_start_to_close",
        "timeout_schedule_to_close",
        "heartbeat_lost",
        "worker_lost",
        "dispatch_lost",
        "cancelled",
        "output_too_large",
        "output_not_encodable",
        "input_not_decodable",
        "step_unknown",
        "requires_unknown",
    }
)
"""``error.code`` of an attempt. What a worker says beyond these is taken as ``user``."""

REJECTION_CODES: Final[frozenset[str]] = frozenset({"step_unknown", "input_not_decodable", "requires_unknown"})
"""``error.code`` of the outcome ``rejected``: this worker cannot, another one may."""

REASONS: Final[dict[str, str]] = {
    "null_key": "the record has no key, and the key is the run id",
    "bad_key": "the key is empty, too long, no UTF-8, or contains U+0000",
    "tombstone": "the record has a key and no value",
    "oversized": "the record, a payload in it or a heartbeat's details are over the limit",
    "undecodable": "neither JSON nor Avro, truncated, malformed, no UTF-8, or nested too deeply",
    "unknown_wire": "the header ductor-wire names a version that this release does not read",
    "unknown_schema": "an Avro fingerprint or a registry's schema id that is not known here",
    "unknown_type": "no such type of message, or not on this topic",
    "invalid_field": "a field is missing, of another type, or out of its range",
    "run_id_mismatch": "the body names another run than the key",
}
"""Why a record is dead-lettered while it is decoded (header ``ductor-reason``), and what each word means."""

OWNER_REASONS: Final[dict[str, str]] = {
    "expired": "a signal or command whose run was not started while it was kept (24 h)",
    "buffer_full": "too many signals or commands wait for their run, or too many bytes of them",
    "lost_unread": "records were deleted before they were read: the letter is empty, its error names their offsets",
    "poisoned_run": "input of a run whose outcome cannot be stored; the run has failed",
    "tick_failed": "input of a run over which its owner stumbled; the run has failed",
    "undeliverable": "a record that a coordinator made and no broker will ever take",
}
"""Why a coordinator sets a record aside that could be read."""
