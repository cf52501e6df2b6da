-- The tables of ductor_stream. Everything of one namespace (one app) carries its number `ns`.
-- Only the coordinator that owns a run's partition writes runs (R1). Times are set by the owner from Postgres's clock.
--
-- Second indexes that begin like a primary key are partial, even those that hold every row: an index whose condition
-- a query does not say cannot be chosen for it. Else a lookup by key, planned while the table was small and both
-- indexes cost the same, may walk through the wrong one for as long as that plan lives.

create table eec_schema (
    version     integer not null,
    phase       text not null,
    name        text not null,
    applied_at  timestamptz not null default now(),
    primary key (version, phase)
);

create table eec_namespace (
    ns          smallint generated always as identity primary key,
    name        text not null unique,
    partitions  integer not null check (partitions > 0),
    cluster_id  text not null,
    created_at  timestamptz not null default now()
);

-- One row per Kafka partition of the inbound topics: who may commit, and how far input was applied.
create table eec_partition (
    ns           smallint not null,
    partition    integer not null,
    token        uuid not null,
    epoch        bigint not null,
    offsets      bigint[] not null,             -- next offset of run-events, attempt-results, wakeups; -1: never read
    topic_ids    jsonb not null default '{}',   -- full topic name -> id, as of the last commit that said so
    outbox_seq   bigint not null default 0,
    clean        boolean not null default true, -- the last owner let go in good order
    suspect      text,                          -- the run that a careful owner is about to tick (R11)
    deaths       smallint not null default 0,   -- owners that died over it, one after the other
    taken_at     timestamptz not null,
    primary key (ns, partition)
) with (fillfactor = 40);

create table eec_workflow_definition (
    ns          smallint not null,
    workflow    text not null,
    version     text not null,
    digest      text not null,
    declared_at timestamptz not null default now(),
    primary key (ns, workflow, version, digest)
);

-- The run: its small header and what people ask for. No column that changes in a run's life is indexed
-- (HOT updates), but for closed_at, which changes once.
create table eec_workflow_run (
    ns              smallint not null,
    run_id          text not null,
    partition       integer not null,
    workflow        text not null,
    version         text not null,
    status          text not null,
    reason          text not null default '',
    execution       integer not null,
    record_version  bigint not null,
    journal_from    bigint not null,
    wake_at         timestamptz,
    state           bytea not null,
    result          bytea,
    error           bytea,
    started_at      timestamptz not null,
    updated_at      timestamptz not null,
    closed_at       timestamptz,
    primary key (ns, run_id)
) with (fillfactor = 70);

-- Open runs of a partition: take-over, timers, watchdog.
create index eec_workflow_run_open on eec_workflow_run (ns, partition, run_id) where closed_at is null;
-- `runs list`: newest first.
create index eec_workflow_run_started on eec_workflow_run (ns, started_at desc, run_id) where started_at > '-infinity';

-- A run's history: the events of one commit with what the workflow decided on them (MessagePack of Records).
-- It is also what a run is rebuilt from. Each row names the transaction and the epoch that wrote it.
create table eec_workflow_transition (
    ns              smallint not null,
    run_id          text not null,
    record_version  bigint not null,
    execution       integer not null,
    epoch           bigint not null,
    txid            xid8 not null default pg_current_xact_id(),
    at              timestamptz not null,
    records         bytea not null,
    primary key (ns, run_id, record_version)
);

-- What was folded of a run's history (R10): its oldest transitions, of executions that are over, as counts by kind of event.
create table eec_workflow_summary (
    ns              smallint not null,
    run_id          text not null,
    upto            bigint not null,                    -- the last record_version that is in it; the first is 1
    execution       integer not null,                   -- of that one
    first_at        timestamptz not null,
    last_at         timestamptz not null,
    counts          jsonb not null,
    primary key (ns, run_id)
);

-- Attempts are append-only: one row when dispatched, one when finished, at most one late per generation.
create table eec_workflow_step_attempt (
    ns          smallint not null,
    run_id      text not null,
    execution   integer not null,
    node_id     text not null,
    generation  integer not null,
    phase       text not null check (phase in ('dispatched', 'finished', 'late')),
    attempt     integer not null,
    step        text not null,
    queue       text not null,
    outcome     text not null,
    error       bytea,
    worker      text not null,
    at          timestamptz not null,
    primary key (ns, run_id, execution, node_id, generation, phase)
);

create view eec_attempt as
select d.ns, d.run_id, d.execution, d.node_id, d.generation, d.attempt, d.step, d.queue,
       d.at as dispatched_at, f.at as finished_at, f.outcome, f.worker, f.error
  from eec_workflow_step_attempt d
  left join eec_workflow_step_attempt f
    on (f.ns, f.run_id, f.execution, f.node_id, f.generation, f.phase)
     = (d.ns, d.run_id, d.execution, d.node_id, d.generation, 'finished')
 where d.phase = 'dispatched';

-- Ids of signals, commands and starts that were applied, and bodies of those that came before their run.
create table eec_workflow_signal (
    ns          smallint not null,
    run_id      text not null,
    kind        text not null check (kind in ('signal', 'command', 'start')),
    id          text not null,
    name        text not null,
    partition   integer not null,
    seq         bigint generated always as identity,   -- order of arrival
    body        bytea,                                 -- buffered: not yet applied
    expires_at  timestamptz,                           -- of what came before its run: until when it waits, or waited
    primary key (ns, run_id, kind, id)
);
create index eec_workflow_signal_buffered on eec_workflow_signal (ns, partition, expires_at)
    where body is not null and expires_at is not null;
-- What waits for one run, in order: a run's load never walks over the ids of all its past signals.
create index eec_workflow_signal_waiting on eec_workflow_signal (ns, run_id, seq) where body is not null;
-- Those whose wait is over: `purge` looks among them for runs that never came.
create index eec_workflow_signal_waited on eec_workflow_signal (ns, expires_at)
    where body is null and expires_at is not null;

-- Attempts in flight that need a row: heard of by a heartbeat, or running by SyncMatch for longer.
create table eec_open_attempt (
    ns          smallint not null,
    partition   integer not null,
    run_id      text not null,
    execution   integer not null,
    node_id     text not null,
    generation  integer not null,
    token       uuid,
    heard_at    timestamptz not null,
    beat_at     timestamptz not null,
    worker      text not null,
    details     bytea,
    primary key (ns, partition, run_id, execution, node_id)
) with (fillfactor = 60);

-- What a partition's commits still have to produce; dropped when the broker has confirmed it.
create table eec_outbox (
    ns          smallint not null,
    partition   integer not null,
    seq         bigint not null,
    records     bytea not null,
    primary key (ns, partition, seq)
);
alter table eec_outbox alter column records set storage external;

-- Messages for runs of another partition, and messages that wait: rows, since the broker may forget (R5b).
create table eec_inbox (
    ns          smallint not null,
    partition   integer not null,
    id          bigint generated always as identity,
    source      text not null check (source <> ''),
    kind        text not null,
    body        bytea not null,
    not_before  timestamptz,
    tries       integer not null default 0,
    primary key (ns, partition, id)
);
create unique index eec_inbox_source on eec_inbox (ns, partition, source) where source <> '';

-- Values of dead letters that are too large for their records.
create table eec_payload (
    ns          smallint not null,
    id          text not null,
    body        bytea not null,
    stored_at   timestamptz not null default now(),
    primary key (ns, id)
);
create index eec_payload_stored on eec_payload (ns, stored_at) where stored_at > '-infinity';

-- Counts are read, never counted: kept by the batch, per partition so that owners do not wait for each other.
create table eec_counter (
    ns          smallint not null,
    partition   integer not null,
    workflow    text not null,
    status      text not null,
    count       bigint not null,
    primary key (ns, partition, workflow, status)
) with (fillfactor = 60);
