-- name: commit_one
-- purpose: the batch of one run that goes on by a step, at half the latency of `commit`: scalars instead of arrays
-- index: eec_partition_pkey, eec_workflow_run_pkey, eec_open_attempt_pkey, eec_outbox_pkey
-- The same rules as `commit`, without the parts that such a batch does not have: see there.
with
held as (
    update eec_partition p
       set offsets    = %(f_next)b::bigint[],
           outbox_seq = greatest(p.outbox_seq, %(f_seq)b),
           topic_ids  = coalesce(%(f_topic_ids)b::jsonb, p.topic_ids)
     where p.ns = %(ns)b
       and p.partition = %(f_partition)b
       and p.token = %(f_token)b::uuid
       and p.epoch = %(f_epoch)b
       and p.offsets = %(f_previous)b::bigint[]
    returning 1
),
updated as (
    update eec_workflow_run
       set record_version = %(s_expected)b + 1, wake_at = %(s_wake_at)b, updated_at = %(s_now)b
     where ns = %(ns)b
       and run_id = %(s_run_id)b
       and record_version = %(s_expected)b
    returning run_id, record_version, execution
),
journalled as (
    insert into eec_workflow_transition (ns, run_id, record_version, execution, epoch, at, records)
    select %(ns)b, run_id, record_version, execution, %(s_epoch)b, %(s_now)b, %(s_entry)b from updated
),
attempted as (
    insert into eec_workflow_step_attempt (ns, run_id, execution, node_id, generation, phase, attempt,
                                           step, queue, outcome, error, worker, at)
    select %(ns)b, *
      from unnest(%(a_run_id)b, %(a_execution)b, %(a_node_id)b, %(a_generation)b, %(a_phase)b, %(a_attempt)b,
                  %(a_step)b, %(a_queue)b, %(a_outcome)b, %(a_error)b, %(a_worker)b, %(a_at)b)
),
closed as (
    delete from eec_open_attempt o
     using unnest(%(d_partition)b, %(d_run_id)b, %(d_execution)b, %(d_node_id)b)
        as d(partition, run_id, execution, node_id)
     cross join lateral (select ctid as tid from eec_open_attempt
                          where ns = %(ns)b and partition = d.partition and run_id = d.run_id
                            and execution = d.execution and node_id = d.node_id offset 0) t
     where o.ctid = t.tid
),
confirmed as (
    delete from eec_outbox
     where ns = %(ns)b
       and partition = %(f_partition)b
       and seq <= %(f_confirmed)b
),
owed as (
    insert into eec_outbox (ns, partition, seq, records)
    select %(ns)b, %(f_partition)b, %(f_seq)b, %(f_outbox)b
     where %(f_outbox)b is not null
)
select 1 / ((select count(*) from held) = 1)::int as fence_held,
       1 / ((select count(*) from updated) = 1)::int as versions_held,
       floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now
;
