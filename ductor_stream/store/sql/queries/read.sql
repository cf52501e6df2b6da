-- name: find_run
-- purpose: one run as people ask for it
-- index: eec_workflow_run_pkey
select run_id, workflow, version, status, reason, execution, record_version, partition, wake_at,
       started_at, updated_at, closed_at, result, error, state
  from eec_workflow_run
 where ns = %(ns)b and run_id = %(run_id)b
;

-- name: list_runs
-- purpose: runs, newest first, from a place in that order on
-- index: eec_workflow_run_started
-- The condition on -infinity is what lets this query use its index (see schema.sql).
select run_id, workflow, version, status, reason, execution, record_version, partition, wake_at,
       started_at, updated_at, closed_at, result, error, state
  from eec_workflow_run
 where ns = %(ns)b
   and started_at > '-infinity'
   and (%(status)b::text is null or status = %(status)b)
   and (%(workflow)b::text is null or workflow = %(workflow)b)
   and (%(before_at)b::timestamptz is null
        or started_at < %(before_at)b
        or (started_at = %(before_at)b and run_id > %(before_id)b))
 order by started_at desc, run_id
 limit %(limit)b
;

-- name: list_newest_open_runs
-- purpose: the newest open runs, with the code that they need
-- index: eec_partition_pkey, eec_workflow_run_open
-- Partition by partition, so that closed runs are never walked over.
select r.run_id, r.workflow, r.version
  from eec_partition p
  cross join lateral (
      select run_id, workflow, version, started_at
        from eec_workflow_run
       where ns = %(ns)b and partition = p.partition and closed_at is null
       order by started_at desc, run_id
       limit %(limit)b
  ) r
 where p.ns = %(ns)b
 order by r.started_at desc, r.run_id
 limit %(limit)b
;

-- name: list_attempts
-- purpose: the attempts of a run, in the order in which they were dispatched
-- index: eec_workflow_step_attempt_pkey
select a.execution, a.node_id, a.generation, a.attempt, a.step, a.queue, a.dispatched_at, a.finished_at,
       a.outcome, a.worker, a.error, l.at, l.outcome
  from eec_attempt a
  left join eec_workflow_step_attempt l
    on (l.ns, l.run_id, l.execution, l.node_id, l.generation, l.phase)
     = (a.ns, a.run_id, a.execution, a.node_id, a.generation, 'late')
 where a.ns = %(ns)b and a.run_id = %(run_id)b
 order by a.dispatched_at, a.execution, a.node_id, a.generation
;

-- name: list_open_attempts_of_run
-- purpose: what was heard of the attempts of a run that are in flight
-- index: eec_open_attempt_pkey
select execution, node_id, generation, heard_at, beat_at, worker, details
  from eec_open_attempt
 where ns = %(ns)b and partition = %(partition)b and run_id = %(run_id)b
;

-- name: list_put_off_of_run
-- purpose: messages that were put off and have a run's id somewhere in them: whose they are is told by their bodies
-- index: eec_inbox_pkey
select kind, body, not_before, tries
  from eec_inbox
 where ns = %(ns)b and partition = %(partition)b
   and (not_before is not null or tries > 0) and kind <> 'produce'
   and position(%(run_id)b in body) > 0
 order by id
 limit %(limit)b
;

-- name: list_history
-- purpose: the transitions of a run, in order
-- index: eec_workflow_transition_pkey
select record_version, execution, at, epoch, txid::text::bigint, records
  from eec_workflow_transition
 where ns = %(ns)b and run_id = %(run_id)b and record_version > %(after)b
 order by record_version
 limit %(limit)b
;

-- name: read_counts
-- purpose: how many runs of each workflow are in each status
-- index: eec_counter_pkey
select workflow, status, sum(count)::bigint
  from eec_counter
 where ns = %(ns)b
 group by workflow, status
having sum(count) <> 0
 order by workflow, status
;

-- name: count_open_versions
-- purpose: open runs of each workflow's versions by status, with the start of the oldest
-- index: eec_partition_pkey, eec_workflow_run_open
-- Counted partition by partition, so that closed runs are never walked over: the primary key holds those too.
select t.workflow, t.version, t.status, sum(t.runs)::bigint, min(t.oldest_at)
  from eec_partition p
  cross join lateral (
      select workflow, version, status, count(*) as runs, min(started_at) as oldest_at
        from eec_workflow_run
       where ns = %(ns)b and partition = p.partition and closed_at is null
       group by workflow, version, status
  ) t
 where p.ns = %(ns)b
 group by t.workflow, t.version, t.status
 order by t.workflow, t.version, t.status
;

-- name: list_declared
-- purpose: the code that coordinators have served, by workflow and version
-- index: eec_workflow_definition_pkey
select workflow, version, digest, declared_at
  from eec_workflow_definition
 where ns = %(ns)b
 order by workflow, version, declared_at, digest
;

-- name: find_closed
-- purpose: whether a run has ended, as cheap as can be, for those who wait for it
-- index: eec_workflow_run_pkey
select closed_at is not null from eec_workflow_run where ns = %(ns)b and run_id = %(run_id)b
;

-- name: check_versions
-- purpose: runs whose transitions are not exactly 1..record_version (but for those folded), each from a commit of its own and of a later epoch
-- index: none, it reads a whole namespace
-- The first says which check failed; the second is the run.
with journal as (
    select run_id, count(*) as transitions, min(record_version) as first, max(record_version) as last,
           count(distinct txid) as commits, bool_or(epoch < before) as epoch_fell
      from (select run_id, record_version, txid, epoch,
                   lag(epoch) over (partition by run_id order by record_version) as before
              from eec_workflow_transition
             where ns = %(ns)b) t
     group by run_id
)
select case
         when r.run_id is null then 'transitions without a run'
         when j.run_id is null then 'no transitions'
         when j.first <> r.folded + 1 or j.last <> r.record_version or j.transitions <> r.record_version - r.folded
           then 'record_versions not dense'
         when j.commits <> j.transitions then 'two transitions of one commit'
         else 'a transition of an older epoch after one of a newer'
       end,
       coalesce(r.run_id, j.run_id)
  from (select run_id, record_version, coalesce(upto, 0) as folded
          from eec_workflow_run left join eec_workflow_summary using (ns, run_id)
         where ns = %(ns)b) r
  full join journal j on j.run_id = r.run_id
 where r.run_id is null or j.run_id is null
    or j.first <> r.folded + 1 or j.last <> r.record_version or j.transitions <> r.record_version - r.folded
    or j.commits <> j.transitions or j.epoch_fell
 order by 2
 limit %(limit)b
;

-- name: check_attempts
-- purpose: nodes with more than one accepted result, and accepted results of attempts that were never dispatched
-- index: none, it reads a whole namespace
select case when count(*) filter (where phase = 'finished' and outcome = 'completed') > 1
            then 'two accepted results of one node' else 'a result without a dispatch' end,
       run_id
  from eec_workflow_step_attempt
 where ns = %(ns)b
 group by run_id, execution, node_id
having count(*) filter (where phase = 'finished' and outcome = 'completed') > 1
    or count(distinct generation) filter (where phase = 'finished')
       > count(distinct generation) filter (where phase = 'dispatched')
 order by 2
 limit %(limit)b
;

-- name: check_missing
-- purpose: which of the runs that should be there are not
-- index: eec_workflow_run_pkey
select k.run_id
  from unnest(%(run_ids)b) as k(run_id)
 where not exists (select from eec_workflow_run where ns = %(ns)b and run_id = k.run_id)
 order by 1
 limit %(limit)b
;

-- name: count_runs
-- purpose: runs, open ones, transitions and attempts of a namespace, counted for a report
-- index: none, it reads a whole namespace
select (select count(*) from eec_workflow_run where ns = %(ns)b),
       (select count(*) from eec_workflow_run where ns = %(ns)b and closed_at is null),
       (select count(*) from eec_workflow_transition where ns = %(ns)b),
       (select count(*) from eec_workflow_step_attempt where ns = %(ns)b and phase = 'dispatched'),
       (select count(*) from eec_workflow_step_attempt where ns = %(ns)b and phase = 'late')
;
