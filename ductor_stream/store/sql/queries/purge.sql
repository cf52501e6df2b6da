-- name: count_closed
-- purpose: how many runs ended before a moment, for those who only want to know
-- index: eec_workflow_run_started
-- A run that ended before a moment has started before it: that is what lets these two queries use an index.
-- One that something has come for since stays as long as if it had ended then: what came may come once more.
select workflow, status, count(*)
  from eec_workflow_run
 where ns = %(ns)b
   and started_at > '-infinity' and started_at < %(before)b
   and closed_at < %(before)b and updated_at < %(before)b
 group by workflow, status
 order by workflow, status
;

-- name: hold_closed
-- purpose: the next runs that ended before a moment, held so that no owner goes on with one of them meanwhile
-- index: eec_workflow_run_started
-- What somebody else holds is left for the next purge: a purge never waits for an owner.
select run_id, record_version, floor(extract(epoch from started_at) * 1000)::bigint
  from eec_workflow_run
 where ns = %(ns)b
   and started_at > '-infinity' and started_at < %(before)b
   and (started_at < %(page_at)b or (started_at = %(page_at)b and run_id > %(page_id)b))
   and closed_at < %(before)b and updated_at < %(before)b
 order by started_at desc, run_id
 limit %(limit)b
   for update skip locked
;

-- name: drop_closed
-- purpose: delete runs that are held, with all that was kept for them
-- index: eec_workflow_run_pkey, eec_workflow_transition_pkey, eec_workflow_step_attempt_pkey, eec_workflow_signal_pkey, eec_workflow_summary_pkey
-- In a statement of its own: it must see what was committed while the statement before it waited for nobody but
-- took its locks. What goes is counted under partition -1, a row that no owner ever writes.
with
chosen as materialized (
    select distinct run_id from unnest(%(run_ids)b) as k(run_id)
),
transitions as (
    delete from eec_workflow_transition t
     using chosen c
     cross join lateral (select ctid as tid from eec_workflow_transition
                          where ns = %(ns)b and run_id = c.run_id offset 0) x
     where t.ctid = x.tid
    returning 1
),
attempts as (
    delete from eec_workflow_step_attempt a
     using chosen c
     cross join lateral (select ctid as tid from eec_workflow_step_attempt
                          where ns = %(ns)b and run_id = c.run_id offset 0) x
     where a.ctid = x.tid
    returning 1
),
summaries as (
    delete from eec_workflow_summary u
     using chosen c
     cross join lateral (select ctid as tid from eec_workflow_summary
                          where ns = %(ns)b and run_id = c.run_id offset 0) x
     where u.ctid = x.tid
),
messages as (
    delete from eec_workflow_signal s
     using chosen c
     cross join lateral (select ctid as tid from eec_workflow_signal
                          where ns = %(ns)b and run_id = c.run_id offset 0) x
     where s.ctid = x.tid
    returning 1
),
runs as (
    delete from eec_workflow_run r
     using chosen c
     cross join lateral (select ctid as tid from eec_workflow_run
                          where ns = %(ns)b and run_id = c.run_id offset 0) x
     where r.ctid = x.tid
    returning r.workflow, r.status
),
counted as (
    insert into eec_counter as k (ns, partition, workflow, status, count)
    select %(ns)b, -1, workflow, status, -count(*) from runs group by workflow, status order by workflow, status
    on conflict (ns, partition, workflow, status) do update set count = k.count + excluded.count
)
select (select count(*) from runs), (select count(*) from transitions),
       (select count(*) from attempts), (select count(*) from messages)
;

-- name: count_left_over
-- purpose: how much is kept that belongs to no run: ids of messages whose run never came, values of dead letters
-- index: eec_workflow_signal_waited, eec_workflow_run_pkey, eec_payload_stored
select (select count(*)
          from eec_workflow_signal s
         where s.ns = %(ns)b and s.body is null and s.expires_at < %(before)b
           and not exists (select from eec_workflow_run where ns = %(ns)b and run_id = s.run_id offset 0)),
       (select count(*)
          from eec_payload
         where ns = %(ns)b and stored_at > '-infinity' and stored_at < %(letters_before)b)
;

-- name: drop_waited
-- purpose: forget the next ids of messages that waited for their run in vain; from where the next page begins
-- index: eec_workflow_signal_waited, eec_workflow_run_pkey
-- No owner writes such a row again, so that nothing is held here.
with
chosen as materialized (
    select s.ctid as tid, s.expires_at
      from eec_workflow_signal s
     where s.ns = %(ns)b and s.body is null and s.expires_at >= %(after)b and s.expires_at < %(before)b
       and not exists (select from eec_workflow_run where ns = %(ns)b and run_id = s.run_id offset 0)
     order by s.expires_at
     limit %(limit)b
),
gone as (
    delete from eec_workflow_signal s using chosen c where s.ctid = c.tid returning 1
)
select (select count(*) from gone), (select floor(extract(epoch from max(expires_at)) * 1000)::bigint from chosen)
;

-- name: drop_payloads
-- purpose: delete the next values whose dead letters are gone
-- index: eec_payload_stored
with
chosen as materialized (
    select ctid as tid
      from eec_payload
     where ns = %(ns)b and stored_at > '-infinity' and stored_at < %(before)b
     order by stored_at
     limit %(limit)b
),
gone as (
    delete from eec_payload p using chosen c where p.ctid = c.tid returning 1
)
select count(*) from gone
;
