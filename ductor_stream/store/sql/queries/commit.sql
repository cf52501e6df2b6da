-- name: commit
-- purpose: write a batch in one statement: everything lands or nothing does (protocol 1, 2; R3, R6)
-- index: eec_partition_pkey, eec_workflow_run_pkey, eec_workflow_signal_pkey, eec_inbox_pkey, eec_open_attempt_pkey, eec_outbox_pkey
-- One statement, so that a frozen client never sits in a transaction. The checks stand in the final select as
-- divisions: a mismatch divides by zero and aborts all of it (a condition on each part would let the other parts
-- land). The first column makes the fence the first thing that runs, before any lock on a run is taken.
-- Rows to change are looked up one by one in a lateral subquery and then reached by their ctid, since this leaves the
-- planner no choice: a plain join, planned while a table was small, scans the whole of it for each row ever after.
-- A part (up to the next `-- part:` line) is left out where a batch has no rows for it: each costs Postgres 0.05 ms, used or
-- not, and most commits of few runs need five of them. `queries.numbered` puts the statement together.
-- Rows come sorted from the client wherever two owners could meet (inbox, payloads), so that they cannot deadlock.
with
fence as materialized (
    select *
      from unnest(%(f_partition)b, %(f_token)b, %(f_epoch)b, %(f_previous)b, %(f_next)b,
                  %(f_confirmed)b, %(f_seq)b, %(f_outbox)b, %(f_topic_ids)b)
        as f(partition, token, epoch, previous, next, confirmed, seq, outbox, topic_ids)
),
held as (
    update eec_partition p
       set offsets    = f.next::bigint[],
           outbox_seq = greatest(p.outbox_seq, f.seq),
           topic_ids  = coalesce(f.topic_ids::jsonb, p.topic_ids)
      from fence f
     where p.ns = %(ns)b
       and p.partition = f.partition
       and p.token = f.token::uuid
       and p.epoch = f.epoch
       and p.offsets = f.previous::bigint[]
    returning 1
),
-- part: runs
written as materialized (
    select *
      from unnest(%(r_run_id)b, %(r_partition)b, %(r_expected)b, %(r_workflow)b, %(r_version)b, %(r_execution)b,
                  %(r_status)b, %(r_header)b, %(r_entry)b, %(r_epoch)b, %(r_journal_from)b, %(r_wake_at)b,
                  %(r_reason)b, %(r_result)b, %(r_error)b, %(r_started_at)b, %(r_closed_at)b, %(r_now)b)
        as r(run_id, partition, expected, workflow, version, execution,
             status, header, entry, epoch, journal_from, wake_at,
             reason, result, error, started_at, closed_at, now)
),
journalled as (
    insert into eec_workflow_transition (ns, run_id, record_version, execution, epoch, at, records)
    select %(ns)b, run_id, expected + 1, execution, epoch, now, entry
      from written
),
-- part: changed
updated as (
    update eec_workflow_run o
       set workflow = r.workflow, version = r.version, status = r.status, reason = r.reason,
           execution = r.execution, record_version = r.expected + 1, journal_from = r.journal_from,
           wake_at = r.wake_at, state = r.header, result = r.result, error = r.error,
           started_at = r.started_at, updated_at = r.now,
           -- When it ended, and not when it was last heard of: what comes afterwards does not end it once more.
           closed_at = case when r.closed_at is not null then coalesce(o.closed_at, r.closed_at) end
      from (select w.*, t.tid
              from written w
             cross join lateral (select ctid as tid from eec_workflow_run
                                  where ns = %(ns)b and run_id = w.run_id offset 0) t
             where w.expected > 0) r
     where o.ctid = r.tid
       and o.record_version = r.expected
    returning 1
),
-- part: created
created as (
    insert into eec_workflow_run (ns, run_id, partition, workflow, version, status, reason, execution, record_version,
                                  journal_from, wake_at, state, result, error, started_at, updated_at, closed_at)
    select %(ns)b, run_id, partition, workflow, version, status, reason, execution, 1,
           journal_from, wake_at, header, result, error, started_at, now, closed_at
      from written
     where expected = 0
),
-- part: steps
stepped as materialized (
    select *
      from unnest(%(s_run_id)b, %(s_expected)b, %(s_entry)b, %(s_epoch)b, %(s_wake_at)b, %(s_now)b)
        as s(run_id, expected, entry, epoch, wake_at, now)
),
advanced as (
    update eec_workflow_run o
       set record_version = s.expected + 1, wake_at = s.wake_at, updated_at = s.now
      from (select w.*, t.tid
              from stepped w
             cross join lateral (select ctid as tid from eec_workflow_run
                                  where ns = %(ns)b and run_id = w.run_id offset 0) t) s
     where o.ctid = s.tid
       and o.record_version = s.expected
    returning o.run_id, o.record_version, o.execution, s.epoch, s.now, s.entry
),
followed as (
    insert into eec_workflow_transition (ns, run_id, record_version, execution, epoch, at, records)
    select %(ns)b, run_id, record_version, execution, epoch, now, entry
      from advanced
),
-- part: attempts
attempted as (
    insert into eec_workflow_step_attempt (ns, run_id, execution, node_id, generation, phase, attempt,
                                           step, queue, outcome, error, worker, at)
    select %(ns)b, *
      from unnest(%(a_run_id)b, %(a_execution)b, %(a_node_id)b, %(a_generation)b, %(a_phase)b, %(a_attempt)b,
                  %(a_step)b, %(a_queue)b, %(a_outcome)b, %(a_error)b, %(a_worker)b, %(a_at)b)
),
-- part: late
late as (
    insert into eec_workflow_step_attempt (ns, run_id, execution, node_id, generation, phase, attempt,
                                           step, queue, outcome, error, worker, at)
    select %(ns)b, *
      from unnest(%(l_run_id)b, %(l_execution)b, %(l_node_id)b, %(l_generation)b, %(l_phase)b, %(l_attempt)b,
                  %(l_step)b, %(l_queue)b, %(l_outcome)b, %(l_error)b, %(l_worker)b, %(l_at)b)
    on conflict do nothing
),
-- part: messages
noted as (
    insert into eec_workflow_signal (ns, run_id, partition, kind, id, name, body, expires_at)
    select %(ns)b, run_id, partition, kind, id, name, body, expires_at
      from unnest(%(m_run_id)b, %(m_partition)b, %(m_kind)b, %(m_id)b, %(m_name)b, %(m_body)b, %(m_expires_at)b)
           with ordinality as m(run_id, partition, kind, id, name, body, expires_at, arrival)
     order by arrival
),
-- part: released
released as (
    update eec_workflow_signal s
       set body = null  -- with the moment kept: by it `purge` finds the ids of runs that never came
      from unnest(%(x_run_id)b, %(x_kind)b, %(x_id)b) as x(run_id, kind, id)
     cross join lateral (select ctid as tid from eec_workflow_signal
                          where ns = %(ns)b and run_id = x.run_id and kind = x.kind and id = x.id offset 0) t
     where s.ctid = t.tid
       and s.body is not null
    returning 1
),
-- part: inbox
sent as (
    insert into eec_inbox (ns, partition, source, kind, body, not_before, tries)
    select %(ns)b, partition, source, kind, body, not_before, tries
      from unnest(%(i_partition)b, %(i_source)b, %(i_kind)b, %(i_body)b, %(i_not_before)b, %(i_tries)b)
        as i(partition, source, kind, body, not_before, tries)
    on conflict (ns, partition, source) where source <> '' do nothing
),
-- part: consumed
consumed as (
    delete from eec_inbox i
     using unnest(%(c_partition)b, %(c_id)b) as c(partition, id)
     cross join lateral (select ctid as tid from eec_inbox
                          where ns = %(ns)b and partition = c.partition and id = c.id offset 0) t
     where i.ctid = t.tid
    returning 1
),
-- part: deferred
deferred as (
    update eec_inbox i
       set not_before = q.not_before, tries = q.tries
      from unnest(%(q_partition)b, %(q_id)b, %(q_not_before)b, %(q_tries)b) as q(partition, id, not_before, tries)
     cross join lateral (select ctid as tid from eec_inbox
                          where ns = %(ns)b and partition = q.partition and id = q.id offset 0) t
     where i.ctid = t.tid
    returning 1
),
-- part: opened
opened as (
    insert into eec_open_attempt (ns, partition, run_id, execution, node_id, generation, token,
                                  heard_at, beat_at, worker, details)
    select %(ns)b, partition, run_id, execution, node_id, generation, token::uuid, heard_at, beat_at, worker, details
      from unnest(%(o_partition)b, %(o_run_id)b, %(o_execution)b, %(o_node_id)b, %(o_generation)b, %(o_token)b,
                  %(o_heard_at)b, %(o_beat_at)b, %(o_worker)b, %(o_details)b)
        as o(partition, run_id, execution, node_id, generation, token, heard_at, beat_at, worker, details)
    on conflict (ns, partition, run_id, execution, node_id) do update
       set generation = excluded.generation, token = excluded.token, heard_at = excluded.heard_at,
           beat_at = excluded.beat_at, worker = excluded.worker, details = excluded.details
),
-- part: closed
closed as (
    delete from eec_open_attempt o
     using unnest(%(d_partition)b, %(d_run_id)b, %(d_execution)b, %(d_node_id)b)
        as d(partition, run_id, execution, node_id)
     cross join lateral (select ctid as tid from eec_open_attempt
                          where ns = %(ns)b and partition = d.partition and run_id = d.run_id
                            and execution = d.execution and node_id = d.node_id offset 0) t
     where o.ctid = t.tid
),
-- part: counters
counted as (
    insert into eec_counter as k (ns, partition, workflow, status, count)
    select %(ns)b, * from unnest(%(k_partition)b, %(k_workflow)b, %(k_status)b, %(k_change)b)
    on conflict (ns, partition, workflow, status) do update set count = k.count + excluded.count
),
-- part: payloads
kept as (
    insert into eec_payload (ns, id, body)
    select %(ns)b, * from unnest(%(p_id)b, %(p_body)b)
    on conflict do nothing
),
-- part: always
confirmed as (
    delete from eec_outbox o
     using fence f
     cross join lateral (select ctid as tid from eec_outbox
                          where ns = %(ns)b and partition = f.partition and seq <= f.confirmed offset 0) t
     where o.ctid = t.tid
),
owed as (
    insert into eec_outbox (ns, partition, seq, records)
    select %(ns)b, partition, seq, outbox from fence where outbox is not null
)
select 1 / ((select count(*) from held) = cardinality(%(f_partition)b))::int as fence_held,
-- part: changed
       1 / ((select count(*) from updated) = (select count(*) from written where expected > 0))::int as changed_held,
-- part: steps
       1 / ((select count(*) from advanced) = cardinality(%(s_run_id)b))::int as steps_held,
-- part: released
       1 / ((select count(*) from released) = cardinality(%(x_run_id)b))::int as buffers_held,
-- part: consumed
       1 / ((select count(*) from consumed) = cardinality(%(c_id)b))::int as inbox_held,
-- part: deferred
       1 / ((select count(*) from deferred) = cardinality(%(q_id)b))::int as waiting_held,
-- part: always
       floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now
;
