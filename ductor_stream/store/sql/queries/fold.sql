-- name: find_folded
-- purpose: what was folded of a run's history
-- index: eec_workflow_summary_pkey
select upto, execution, first_at, last_at, counts
  from eec_workflow_summary
 where ns = %(ns)b and run_id = %(run_id)b
;

-- name: list_foldable
-- purpose: the oldest transitions of a run, up to where it may be folded, or up to so many bytes of them
-- index: eec_workflow_transition_pkey
with page as materialized (
    select record_version, execution, at, records, octet_length(records) as bytes
      from eec_workflow_transition
     where ns = %(ns)b and run_id = %(run_id)b and record_version > %(after)b and record_version < %(below)b
     order by record_version
     limit %(limit)b
)
select record_version, execution, at, records
  from (select *, sum(bytes) over (order by record_version) - bytes as before from page) sized
 where before < %(bytes)b
 order by record_version
;

-- name: drop_attempts
-- purpose: delete attempts of a run's executions that are about to be folded, not too many at once
-- index: eec_partition_pkey, eec_workflow_step_attempt_pkey
-- From the end on: of an attempt that is cut in two, what it was dispatched with is left, and no result without that.
with
held as materialized (
    select 1
      from eec_partition
     where ns = %(ns)b and partition = %(partition)b and token = %(token)b::uuid and epoch = %(epoch)b
       for share
),
gone as (
    delete from eec_workflow_step_attempt a
     using (select ctid as tid
              from eec_workflow_step_attempt
             where ns = %(ns)b and run_id = %(run_id)b and execution < %(execution)b
             order by execution desc, node_id desc, generation desc, phase desc
             limit %(limit)b) d
     where a.ctid = d.tid
       and exists (select from held)
    returning 1
)
select count(*) from gone
;

-- name: fold
-- purpose: replace the oldest transitions of a run by their summary
-- index: eec_partition_pkey, eec_workflow_transition_pkey, eec_workflow_summary_pkey
-- All of it or nothing, as in `commit`: by the owner alone, from where the last fold ended, and never what a rebuild
-- needs. The lock on the partition's row keeps another owner from taking it in the middle.
with
held as materialized (
    select 1
      from eec_partition
     where ns = %(ns)b and partition = %(partition)b and token = %(token)b::uuid and epoch = %(epoch)b
       for share
),
gone as (
    delete from eec_workflow_transition
     where ns = %(ns)b and run_id = %(run_id)b and record_version > %(before)b and record_version <= %(upto)b
       and record_version < (select journal_from from eec_workflow_run where ns = %(ns)b and run_id = %(run_id)b)
       and exists (select from held)
    returning 1
),
folded as (
    insert into eec_workflow_summary as s (ns, run_id, upto, execution, first_at, last_at, counts)
    select %(ns)b, %(run_id)b, %(upto)b, %(execution)b, %(first_at)b, %(last_at)b, %(counts)b::jsonb
      from held
    on conflict (ns, run_id) do update
       set upto = excluded.upto, execution = excluded.execution, last_at = excluded.last_at, counts = excluded.counts
     where s.upto = %(before)b
    returning 1
)
select 1 / ((select count(*) from folded) = 1)::int as summed,
       1 / ((select count(*) from gone) = %(upto)b - %(before)b)::int as gone
;
