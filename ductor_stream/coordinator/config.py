"""Bounds of the coordinator, each with the reason for its number."""

from __future__ import annotations

import msgspec


class CoordinatorConfig(msgspec.Struct, frozen=True):
    """What may be tuned. Durations are in the unit that the name says."""

    batch_limit: int = 500
    """Inputs per commit: at 500 a step costs .04 ms of Postgres, more gains nothing (speed of one statement)."""
    due_limit: int = 125
    """Timers fired per commit: of a thousand that are due at once, half need not wait for the other half."""
    unconfirmed_limit: int = 64
    """Batches per partition that the broker has not confirmed; then intake rests (protocol 11). A crash redrives them."""
    unconfirmed_bytes: int = 128_000_000
    """Bytes of records in such batches, of all partitions together, likewise: they are in this process's memory until the
    broker has them, and in that of whoever redrives them. 64 batches of 500 small records are some 20 MB."""
    conflict_tries: int = 3
    """Tries in place after a lost version check, before the losers go through the inbox."""
    conflict_bound: int = 5
    """Rounds through the inbox before a run is failed under its row lock (R9)."""
    conflict_backoff_ms: int = 20
    """First back-off of a conflict, doubled with each try, plus up to as much again at random."""
    conflict_delay_ms: int = 500
    """What the losers wait in the inbox from the second round on, doubled with each: 7.5 s in all before a run is failed."""
    idle_poll_s: float = 0.5
    """Longest wait for input: bounds how late retakes, sweeps and the stop flag are seen."""
    local_poll_s: float = 0.002
    """Wait between looks at Kafka while SyncMatch attempts run; backs off to ten times that."""
    horizon_ms: int = 600_000
    """Timers due within this time are kept in memory; open runs are scanned again every half of it."""
    overdue_wait_s: float = 10.0
    """How long the timers of a partition wait, after it was taken, until what had come before that has been read: a cancel
    or a signal of a downtime is heard before a timer of it. Behind a long backlog they begin without it."""
    buffered_ttl_ms: int = 86_400_000
    """How long a signal or command waits for its run (24 h), then it is dead-lettered."""
    buffered_limit: int = 10_000
    """Buffered messages per run that does not exist yet; more are dead-lettered."""
    signals_limit: int = 20_000
    """Signals that a run may have before it and not yet taken; more are dead-lettered: they move along when it continues
    as new, and are in the memory of every owner."""
    signals_bytes: int = 32_000_000
    """Bytes of their payloads, likewise, and of what waits for a run that does not exist yet."""
    history_limit: int = 200_000
    """Events in one execution from which a run is failed, visibly: rebuilding it holds its owner up (R10), at so many for
    some 14 s of processor (bench/rebuild.py)."""
    history_bytes: int = 200_000_000
    """Bytes of the records that a run is rebuilt from, likewise: reading them takes some three seconds."""
    history_kept: int = 10_000
    """Transitions of executions that are over which a run keeps in full; older ones are folded into a summary (R10)."""
    cached_runs: int = 12_000
    """Runs kept in memory, least recently used out first: at 5 to 9 KB a run with its coroutine and loop, some 100 MB.
    One that was let go is read again and replayed when something happens to it."""
    load_bytes: int = 32_000_000
    """Bytes of records that are read at once of runs that are not in memory, but for a run that is larger by itself: rebuilt,
    they take some four times that. The runs of a batch are ticked portion by portion."""
    inbox_limit: int = 500
    """Inbox rows read at a time."""
    sweep_s: float = 5.0
    """How often the inbox is read without a hint, and topic ids are compared."""
    expiry_sweep_s: float = 60.0
    """How often buffered messages are looked through for expired ones."""
    lost_after_ms: int = 60_000
    """An attempt of which nothing was heard for so long may be lost, once its queue has passed its task (R9)."""
    watch_s: float = 600.0
    """How often open runs are looked through for lost attempts: at once when a task topic lost what nobody had read,
    else every ten minutes, and more rarely, up to an hour, while nothing is found."""
    redrives: int = 3
    """Times that a lost task is sent again before its attempt fails, with the reason."""
    confirm_idle_s: float = 0.25
    """An idle owner records what the broker has confirmed after this time."""
    sync_row_s: float = 0.5
    """A SyncMatch attempt that runs longer gets a row of its own, so that its batch can be confirmed."""
    deliver_again_ms: int = 2_000
    """Delay before a record whose topic was gone or forbidden is produced again."""
    drain_s: float = 10.0
    """How long a graceful stop waits for acknowledgements and local attempts."""
