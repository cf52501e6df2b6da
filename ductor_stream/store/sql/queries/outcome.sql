-- name: find_outcomes
-- purpose: how many runs stand, which start began their execution, and whether a start was applied: for those who wait
-- index: eec_workflow_run_pkey, eec_workflow_transition_pkey, eec_workflow_signal_pkey
select k.run_id, k.start_id, r.workflow, r.version, r.status, r.reason, r.execution, r.result, r.error,
       case when k.start_id <> '' then
            (select t.records
               from eec_workflow_transition t
              where t.ns = %(ns)b and t.run_id = k.run_id and t.record_version = r.journal_from) end,
       k.start_id <> '' and exists (
            select from eec_workflow_signal s
             where s.ns = %(ns)b and s.run_id = k.run_id and s.kind = 'start' and s.id = k.start_id)
  from unnest(%(run_ids)b, %(start_ids)b) as k(run_id, start_id)
 cross join lateral (
       select * from eec_workflow_run where ns = %(ns)b and run_id = k.run_id offset 0) r
;
