"""What ``doctor`` thinks of a Postgres and of the tables in it. Pure: facts in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator

from ductor_stream.cli.doctor_kafka import Verdict
from ductor_stream.store.inspection import PostgresFacts

OLDEST = 140_000


def server(facts: PostgresFacts) -> Iterator[Verdict]:
    """That it was reached, is new enough, can be written to, and keeps what it acknowledges over a crash."""
    if facts.version_number < OLDEST:
        yield Verdict("postgres", "wrong", f"Postgres {facts.version} is too old", "use Postgres 14 or later")
    elif facts.standby:
        yield Verdict(
            "postgres", "wrong", f"Postgres {facts.version} is a standby: it cannot be written to",
            "name the primary, or all hosts with target_session_attrs left to us",
        )  # fmt: skip
    else:
        yield Verdict("postgres", "ok", f"Postgres {facts.version}, as {facts.user}")
    if not facts.durable:
        yield Verdict(
            "postgres", "wrong", "fsync or full_page_writes is off: a crash of the server loses or corrupts runs",
            "set both on",
        )  # fmt: skip


def schema(facts: PostgresFacts) -> Iterator[Verdict]:
    """Whether the tables are those of this release."""
    before = [label for label in facts.due if "_pre_" in label]
    if facts.newer:
        yield Verdict("schema", "wrong", facts.newer, "deploy the release that the schema is of")
    elif before:
        yield Verdict("schema", "wrong", f"not applied: {', '.join(facts.due)}", "run `ductor-stream migrate`")
    elif facts.due:
        yield Verdict(
            "schema", "note", f"due when the release before this one is gone: {', '.join(facts.due)}",
            "run `ductor-stream migrate --phase post`",
        )  # fmt: skip
    elif not facts.standby:
        yield Verdict("schema", "ok", "as this release has it")


def namespace(facts: PostgresFacts, name: str, inbound: int | None, cluster_id: str | None) -> Iterator[Verdict]:
    """Whether the namespace's row fits the cluster; ``inbound`` partitions and ``cluster_id`` None: Kafka is unknown."""
    if facts.partitions is None:
        if not facts.due and not facts.newer:
            yield Verdict("namespace", "note", f"{name} is new: its first coordinator will record the partition count")
        return
    if cluster_id is not None and facts.cluster_id not in (None, "", cluster_id):
        yield Verdict(
            "namespace", "wrong", f"{name} was made on cluster {facts.cluster_id}, and this is {cluster_id}",
            "check that DUCTOR_KAFKA_BOOTSTRAP and DUCTOR_DATABASE_URL belong together",
        )  # fmt: skip
    elif inbound is not None and inbound > facts.partitions:
        text = (
            f"{name} has {facts.partitions} run partitions, and the topics {inbound}: what arrives beyond is sent home"
        )
        yield Verdict("namespace", "note", text)
    elif inbound is None or inbound == facts.partitions:
        yield Verdict("namespace", "ok", f"{name} has {facts.partitions} run partitions")


def rights(facts: PostgresFacts) -> Iterator[Verdict]:
    """What an owner does with the tables and this role may not."""
    if facts.missing_rights:
        yield Verdict(
            "postgres-rights", "wrong", f"{facts.user} may not {', '.join(facts.missing_rights)}",
            f"as the owner of the tables: `ductor-stream grants --coordinator {facts.user} --apply`",
        )  # fmt: skip
    elif not facts.due and not facts.newer:
        yield Verdict("postgres-rights", "ok", f"{facts.user} may do all that a coordinator does")


def replicas(facts: PostgresFacts) -> Iterator[Verdict]:
    """Whether what Postgres acknowledged outlives the promotion of a replica."""
    if facts.replicas and not facts.standby_names:
        yield Verdict(
            "postgres-replication", "warning",
            f"{facts.replicas} replica(s), none synchronous: after a promotion runs may go back to where they were, while "
            "the effects of their steps have happened",
            "set synchronous_standby_names (ANY 1 (…)), or never promote",
        )  # fmt: skip
    elif facts.standby_names and not facts.replicas:
        yield Verdict(
            "postgres-replication", "warning", f"synchronous_standby_names={facts.standby_names}, and no replica is "
            "connected: commits wait", "bring a replica back, or clear the setting",
        )  # fmt: skip
    else:
        told = f"synchronous: {facts.standby_names}" if facts.standby_names else "no replica is connected"
        yield Verdict("postgres-replication", "ok", told)


def pooler(facts: PostgresFacts) -> Iterator[Verdict]:
    """Whether something stands between that breaks what owners rest on."""
    if facts.pooling == "transaction":
        yield Verdict(
            "pooler", "wrong",
            "a pooler in transaction mode: settings, prepared statements and the names of owners are lost between "
            "statements",
            "connect coordinators directly, or by a pool in session mode (pool_mode=session)",
        )  # fmt: skip
    elif facts.pooling == "session":
        text = "a pooler in session mode: one connection for each coordinator is held all the time"
        yield Verdict("pooler", "note", text)
    else:
        yield Verdict("pooler", "ok", "connected directly")
