-- name: create_partition
-- purpose: the row of a partition that nobody ever owned; its epoch is raised by the take that follows
-- index: eec_partition_pkey
insert into eec_partition (ns, partition, token, epoch, offsets, taken_at)
values (%(ns)b, %(partition)b, %(token)b::uuid, 0, %(offsets)b, clock_timestamp())
on conflict (ns, partition) do nothing
;

-- name: raise_epoch
-- purpose: take a partition: a new token, the next epoch, and how its last owner left it
-- index: eec_partition_pkey
-- `found` waits for a commit in flight and then sees the row as that left it. Nothing else may be read here: the rest
-- of this statement still sees the database as it was before the wait (protocol 1).
with found as (
    select clean, token::text as token, suspect, deaths
      from eec_partition
     where ns = %(ns)b and partition = %(partition)b
       for no key update
)
update eec_partition p
   set token = %(token)b::uuid, epoch = p.epoch + 1, clean = false, taken_at = clock_timestamp()
  from found
 where p.ns = %(ns)b and p.partition = %(partition)b
returning p.epoch, found.clean, found.token, found.suspect, found.deaths
;

-- name: read_partition
-- purpose: what a new owner must know of its partition, read under its own token in a new statement (protocol 1)
-- index: eec_partition_pkey, eec_outbox_pkey
select p.offsets, p.topic_ids, p.outbox_seq, floor(extract(epoch from clock_timestamp()) * 1000)::bigint,
       array(select o.seq from eec_outbox o
              where o.ns = p.ns and o.partition = p.partition order by o.seq),
       array(select o.records from eec_outbox o
              where o.ns = p.ns and o.partition = p.partition order by o.seq)
  from eec_partition p
 where p.ns = %(ns)b and p.partition = %(partition)b and p.token = %(token)b::uuid and p.epoch = %(epoch)b
;

-- name: list_open_attempts
-- purpose: attempts in flight that were heard of, for a new owner
-- index: eec_open_attempt_pkey
select run_id, execution, node_id, generation, token::text, heard_at, beat_at, worker, details
  from eec_open_attempt
 where ns = %(ns)b and partition = %(partition)b
;

-- name: release_partition
-- purpose: say that a partition was let go in good order
-- index: eec_partition_pkey
update eec_partition
   set clean = true
 where ns = %(ns)b and partition = %(partition)b and token = %(token)b::uuid and epoch = %(epoch)b
;

-- name: note_suspect
-- purpose: write down which run a careful owner is about to tick, or that there is none (protocol 23)
-- index: eec_partition_pkey
update eec_partition
   set suspect = %(run_id)b, deaths = %(deaths)b
 where ns = %(ns)b and partition = %(partition)b and token = %(token)b::uuid and epoch = %(epoch)b
;

-- name: read_fences
-- purpose: after an aborted commit: which partitions are no longer ours
-- index: eec_partition_pkey
select p.partition, p.token::text, p.epoch, p.offsets
  from unnest(%(partitions)b) as f(partition)
  join eec_partition p on p.ns = %(ns)b and p.partition = f.partition
;

-- name: end_blocker
-- purpose: end the session of ours that holds the row of a partition (protocol 6)
-- index: eec_partition_pkey
-- The holder is the transaction in xmax of the row: this works after the wait has ended, over the one connection that
-- an owner has, where pg_blocking_pids would have to be asked from another one while this one still waits.
select a.pid, a.application_name, starts_with(a.application_name, %(ours)b) and pg_terminate_backend(a.pid)
  from eec_partition p
  join pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = p.xmax
  join pg_stat_activity a on a.pid = l.pid and a.pid <> pg_backend_pid()
 where p.ns = %(ns)b and p.partition = %(partition)b
;

-- name: find_namespace
-- purpose: the row of a namespace
-- index: eec_namespace_name_key
select ns, name, partitions, cluster_id from eec_namespace where name = %(name)b
;

-- name: create_namespace
-- purpose: the first coordinator of a namespace records N and the cluster (protocol 7)
-- index: eec_namespace_name_key
insert into eec_namespace (name, partitions, cluster_id)
values (%(name)b, %(partitions)b, %(cluster_id)b)
on conflict (name) do nothing
;

-- name: declare
-- purpose: which definitions are served, by digest
-- index: none, an insert
insert into eec_workflow_definition (ns, workflow, version, digest)
select %(ns)b, * from unnest(%(workflow)b, %(version)b, %(digest)b)
on conflict do nothing
;

-- name: read_clock
-- purpose: Postgres's clock in ms (protocol 20)
-- index: none, reads no table
select floor(extract(epoch from clock_timestamp()) * 1000)::bigint
;

-- name: own_session
-- purpose: settings of an owner's session that no connection string may change (protocol 29)
-- index: none, reads no table
select set_config(name, value, false) from unnest(%(names)b, %(values)b) as s(name, value)
;
