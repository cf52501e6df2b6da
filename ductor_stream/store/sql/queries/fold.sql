-- name: find_folded
-- purpose: what was folded of a run's history
-- index: eec_workflow_summary_pkey
select upto, execution, first_at, last_at, counts
  from eec_workflow_summary
 where ns = %(ns)b and run_id = %(run_id)b
;

-- name: list_foldable
-- purpose: the oldest transitions of a run, up to where it may be folded
-- index: eec_workflow_transition_pkey
select record_version, execution, at, records
  from eec_workflow_transition
 where ns = %(ns)b and run_id = %(run_id)b and record_version > %(after)b and record_version < %(below)b
 order by record_version
 limit %(limit)b
;

-- name: fold
-- purpose: replace the oldest transitions of a run, and the attempts of its earlier executions, by their summary
-- index: eec_partition_pkey, eec_workflow_transition_pkey, eec_workflow_step_attempt_pkey, eec_workflow_summary_pkey
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
attempts as (
    delete from eec_workflow_step_attempt
     where ns = %(ns)b and run_id = %(run_id)b and execution < %(execution)b
       and exists (select from held)
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
