-- name: load_runs
-- purpose: rows, records of the current execution, and buffered messages of many runs, all as of one moment
-- index: eec_workflow_run_pkey, eec_workflow_transition_pkey, eec_workflow_signal_waiting
-- Of the first of them, as many as come with so many bytes of records and messages, but one at least.
with measured as (
    select k.n, k.run_id, r.record_version, r.state, r.journal_from, m.bytes is not null as waited,
           r.closed_at is null or k.run_id = any(%(whole)b) as opened,
           coalesce(t.bytes, 0) + coalesce(m.bytes, 0) as bytes
      from unnest(%(run_ids)b) with ordinality as k(run_id, n)
      left join lateral (
           select * from eec_workflow_run where ns = %(ns)b and run_id = k.run_id offset 0) r on true
     cross join lateral (
           select sum(octet_length(records)) as bytes
             from eec_workflow_transition
            where ns = %(ns)b and run_id = r.run_id and record_version >= r.journal_from
              and (r.closed_at is null or r.run_id = any(%(whole)b))) t
     cross join lateral (
           select sum(octet_length(body)) as bytes
             from eec_workflow_signal
            where ns = %(ns)b and run_id = k.run_id and body is not null) m
),
summed as (
    select *, sum(bytes) over (order by n) as so_far from measured
)
select k.run_id, k.record_version, k.state, k.journal_from,
       array(select t.records
               from eec_workflow_transition t
              where k.opened and t.ns = %(ns)b and t.run_id = k.run_id and t.record_version >= k.journal_from
              order by t.record_version),
       b.ids, b.kinds, b.bodies, b.expires_at
  from summed k
 cross join lateral (
       select array_agg(s.id order by s.seq) as ids, array_agg(s.kind order by s.seq) as kinds,
              array_agg(s.body order by s.seq) as bodies, array_agg(s.expires_at order by s.seq) as expires_at
         from eec_workflow_signal s
        where k.waited and s.ns = %(ns)b and s.run_id = k.run_id and s.body is not null) b
 where k.so_far <= %(bytes)b or k.n = 1
;

-- name: lock_partitions
-- purpose: before the rows of runs, the partitions they live in: the order in which a commit takes its locks
-- index: eec_workflow_run_pkey, eec_partition_pkey
select p.partition
  from eec_partition p
 where p.ns = %(ns)b
   and p.partition in (select r.partition
                         from eec_workflow_run r
                        where r.ns = %(ns)b and r.run_id = any(%(run_ids)b))
 order by p.partition
   for no key update
;

-- name: lock_runs
-- purpose: hold the rows of runs for the last try of a conflict (protocol 18)
-- index: eec_workflow_run_pkey
select run_id
  from eec_workflow_run
 where ns = %(ns)b and run_id = any(%(run_ids)b)
   for update
;

-- name: find_unlocked
-- purpose: after a lock time-out, and when their inputs come again: the runs whose rows nobody else holds
-- index: eec_workflow_run_pkey
select run_id
  from eec_workflow_run
 where ns = %(ns)b and run_id = any(%(run_ids)b)
   for update skip locked
;

-- name: read_versions
-- purpose: after an aborted commit: which runs have another version than was read; and which there are
-- index: eec_workflow_run_pkey
select run_id, record_version
  from eec_workflow_run
 where ns = %(ns)b and run_id = any(%(run_ids)b)
;

-- name: known_messages
-- purpose: which signals, commands and starts were applied or buffered already, and their names
-- index: eec_workflow_signal_pkey
select k.run_id, k.kind, k.id, s.name, s.buffered
  from unnest(%(run_ids)b, %(kinds)b, %(ids)b) as k(run_id, kind, id)
 cross join lateral (
       select name, body is not null as buffered from eec_workflow_signal
        where ns = %(ns)b and run_id = k.run_id and kind = k.kind and id = k.id offset 0) s
;

-- name: list_due_runs
-- purpose: open runs of a partition that must be looked at up to a moment
-- index: eec_workflow_run_open
select run_id, wake_at
  from eec_workflow_run
 where ns = %(ns)b and partition = %(partition)b and closed_at is null
   and run_id > %(after)b
   and wake_at <= %(until)b
 order by run_id
 limit %(limit)b
;

-- name: list_open_runs
-- purpose: ids of the open runs of a partition, as many as so many bytes of records are loaded for
-- index: eec_workflow_run_open, eec_workflow_transition_pkey
-- One run after the other, so that no more records are counted than are about to be loaded.
with recursive page as materialized (
    select row_number() over (order by run_id) as place, run_id, journal_from
      from eec_workflow_run
     where ns = %(ns)b and partition = %(partition)b and closed_at is null
       and run_id > %(after)b
     order by run_id
     limit %(limit)b
),
taken (place, run_id, bytes) as (
    select 0::bigint, null::text, 0::numeric
    union all
    select p.place, p.run_id,
           t.bytes + (select coalesce(sum(octet_length(j.records)), 0)
                        from eec_workflow_transition j
                       where j.ns = %(ns)b and j.run_id = p.run_id and j.record_version >= p.journal_from)
      from taken t
      join page p on p.place = t.place + 1
     where t.bytes < %(bytes)b
)
select run_id
  from taken
 where place > 0
 order by place
;

-- name: list_suspended_runs
-- purpose: suspended runs of a partition, to be tried again when other code is there
-- index: eec_workflow_run_open
select run_id, workflow, version
  from eec_workflow_run
 where ns = %(ns)b and partition = %(partition)b and closed_at is null
   and run_id > %(after)b
   and status = 'suspended'
 order by run_id
 limit %(limit)b
;

-- name: list_inbox
-- purpose: messages for a partition that may be applied now, in order of arrival
-- index: eec_inbox_pkey
select id, source, kind, body, not_before, tries
  from eec_inbox
 where ns = %(ns)b and partition = %(partition)b
   and (not_before is null or not_before <= %(now)b)
 order by id
 limit %(limit)b
;

-- name: list_put_off
-- purpose: messages for a partition that were put off, whenever they may be applied: newer ones wait behind them
-- index: eec_inbox_pkey
select id, source, kind, body, not_before, tries
  from eec_inbox
 where ns = %(ns)b and partition = %(partition)b and id > %(after)b
   and (not_before is not null or tries > 0) and kind <> 'produce'
 order by id
 limit %(limit)b
;

-- name: list_inbox_ids
-- purpose: after an aborted commit: which inbox rows are still there
-- index: eec_inbox_pkey
select k.partition, k.id
  from unnest(%(partitions)b, %(ids)b) as k(partition, id)
 cross join lateral (
       select from eec_inbox where ns = %(ns)b and partition = k.partition and id = k.id offset 0) i
;

-- name: list_expired_messages
-- purpose: buffered messages whose time to live has passed
-- index: eec_workflow_signal_buffered
select run_id, id, kind, body, expires_at
  from eec_workflow_signal
 where ns = %(ns)b and partition = %(partition)b and body is not null
   and expires_at <= %(now)b
 order by expires_at, seq
 limit %(limit)b
;
