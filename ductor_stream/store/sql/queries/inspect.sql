-- name: inspect_server
-- purpose: what a server says about itself, for doctor
-- index: none, reads no table of ours
select current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on',
       (select count(*) from pg_stat_replication), pg_backend_pid(), current_user::text
;

-- name: inspect_clock
-- purpose: Postgres's clock in ms and fractions of it
-- index: none, reads no table
select extract(epoch from clock_timestamp())::float8 * 1000
;

-- name: inspect_backend
-- purpose: which server process answers: behind a pooler it may be another one each time
-- index: none, reads no table
select pg_backend_pid()
;

-- name: list_missing_rights
-- purpose: what an owner does with our tables and this role may not
-- index: none, reads the catalogue
select format('%%s on %%s', w.privilege, w.relation)
  from unnest(%(relations)s::text[], %(privileges)s::text[]) as w (relation, privilege)
 where to_regclass(w.relation) is not null
   and not has_table_privilege(to_regclass(w.relation), w.privilege)
 order by 1
;
