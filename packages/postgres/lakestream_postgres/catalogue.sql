-- The catalogues of Postgres over the tables of one user, in DuckDB. catalogue.py fills ls_relations and ls_columns and
-- makes each relation of catalogue.txt that a query names: a view of that name here adds rows to it, others are empty.
CREATE SCHEMA pgc;
CREATE SCHEMA info;
CREATE TABLE ls_session (name VARCHAR, setting VARCHAR);
CREATE TABLE ls_types (oid BIGINT, name VARCHAR, typname VARCHAR, typlen SMALLINT, typarray BIGINT, typcategory VARCHAR);
CREATE TABLE ls_schemas (oid BIGINT, name VARCHAR);
CREATE TABLE ls_relations (oid BIGINT, schema_oid BIGINT, schema VARCHAR, name VARCHAR, kind VARCHAR);
CREATE TABLE ls_columns (relation BIGINT, number SMALLINT, name VARCHAR, type BIGINT, size SMALLINT, modifier INTEGER);

-- Tables in macros have names with ls_, or the arguments of a call would mean their columns.
CREATE MACRO ls_current_setting(n) AS (SELECT ls_s.setting FROM ls_session ls_s WHERE ls_s.name = lower(n)),
    (n, missing) AS (SELECT ls_s.setting FROM ls_session ls_s WHERE ls_s.name = lower(n));
CREATE MACRO ls_set_config(n, v, l) AS v;
CREATE MACRO ls_version() AS 'PostgreSQL 15.0 (lakestream ' || ls_current_setting('lakestream_version') || ', DuckDB)';
CREATE MACRO ls_current_database() AS ls_current_setting('database');
CREATE MACRO ls_current_catalog() AS ls_current_setting('database');
CREATE MACRO ls_current_user() AS ls_current_setting('session_authorization');
CREATE MACRO ls_session_user() AS ls_current_setting('session_authorization');
CREATE MACRO ls_user() AS ls_current_setting('session_authorization');
CREATE MACRO ls_current_role() AS ls_current_setting('session_authorization');
CREATE MACRO ls_current_schema() AS 'public';
CREATE MACRO ls_current_schemas(implicit) AS CASE WHEN implicit THEN ['pg_catalog', 'public'] ELSE ['public'] END;
CREATE MACRO ls_pg_backend_pid() AS ls_current_setting('pid')::INTEGER;
CREATE MACRO ls_pg_is_in_recovery() AS false;
CREATE MACRO ls_pg_postmaster_start_time() AS ls_current_setting('started')::TIMESTAMPTZ;
CREATE MACRO ls_pg_conf_load_time() AS ls_current_setting('started')::TIMESTAMPTZ;
CREATE MACRO ls_pg_advisory_unlock_all() AS NULL;
CREATE MACRO ls_pg_client_encoding() AS 'UTF8';
CREATE MACRO ls_getdatabaseencoding() AS 'UTF8';
CREATE MACRO ls_pg_encoding_to_char(e) AS 'UTF8';
CREATE MACRO ls_pg_char_to_encoding(e) AS 6;
CREATE MACRO ls_inet_server_addr() AS NULL::VARCHAR;
CREATE MACRO ls_inet_server_port() AS NULL::INTEGER;
CREATE MACRO ls_inet_client_addr() AS NULL::VARCHAR;
CREATE MACRO ls_txid_current() AS 1::BIGINT;
CREATE MACRO ls_pg_my_temp_schema() AS 0::BIGINT;
CREATE MACRO ls_pg_is_other_temp_schema(o) AS false;
CREATE MACRO ls_pg_get_userbyid(o) AS ls_current_setting('session_authorization');
CREATE MACRO ls_pg_table_is_visible(o) AS (SELECT bool_or(ls_r.schema_oid IN (11, 2200)) FROM ls_relations ls_r WHERE ls_r.oid = o);
CREATE MACRO ls_pg_type_is_visible(o) AS true;
CREATE MACRO ls_pg_function_is_visible(o) AS true;
CREATE MACRO ls_pg_operator_is_visible(o) AS true;
CREATE MACRO ls_pg_collation_is_visible(o) AS true;
CREATE MACRO ls_pg_statistics_obj_is_visible(o) AS true;
CREATE MACRO ls_has_table_privilege(t, p) AS position('select' IN lower(p)) > 0,
    (u, t, p) AS position('select' IN lower(p)) > 0;
CREATE MACRO ls_has_any_column_privilege(t, p) AS position('select' IN lower(p)) > 0,
    (u, t, p) AS position('select' IN lower(p)) > 0;
CREATE MACRO ls_has_column_privilege(t, c, p) AS position('select' IN lower(p)) > 0,
    (u, t, c, p) AS position('select' IN lower(p)) > 0;
CREATE MACRO ls_has_schema_privilege(s, p) AS position('usage' IN lower(p)) > 0,
    (u, s, p) AS position('usage' IN lower(p)) > 0;
CREATE MACRO ls_has_database_privilege(d, p) AS position('connect' IN lower(p)) > 0,
    (u, d, p) AS position('connect' IN lower(p)) > 0;
CREATE MACRO ls_has_function_privilege(f, p) AS true, (u, f, p) AS true;
CREATE MACRO ls_has_sequence_privilege(f, p) AS false, (u, f, p) AS false;
CREATE MACRO ls_has_tablespace_privilege(f, p) AS true, (u, f, p) AS true;
CREATE MACRO ls_has_server_privilege(f, p) AS false, (u, f, p) AS false;
CREATE MACRO ls_pg_has_role(r, p) AS true, (u, r, p) AS true;
CREATE MACRO ls_obj_description(o) AS NULL::VARCHAR, (o, c) AS NULL::VARCHAR;
CREATE MACRO ls_shobj_description(o, c) AS NULL::VARCHAR;
CREATE MACRO ls_col_description(o, n) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_expr(e, r) AS NULL::VARCHAR, (e, r, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_constraintdef(o) AS NULL::VARCHAR, (o, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_indexdef(o) AS NULL::VARCHAR, (o, c, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_viewdef(o) AS NULL::VARCHAR, (o, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_partkeydef(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_ruledef(o) AS NULL::VARCHAR, (o, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_triggerdef(o) AS NULL::VARCHAR, (o, p) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_functiondef(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_function_result(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_function_arguments(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_function_identity_arguments(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_statisticsobjdef_columns(o) AS NULL::VARCHAR;
CREATE MACRO ls_pg_get_serial_sequence(t, c) AS NULL::VARCHAR;
CREATE MACRO ls_pg_relation_is_publishable(o) AS false;
CREATE MACRO ls_pg_relation_is_updatable(o, t) AS 0;
CREATE MACRO ls_pg_tablespace_location(o) AS '';
CREATE MACRO ls_pg_relation_size(o) AS 0::BIGINT, (o, f) AS 0::BIGINT;
CREATE MACRO ls_pg_table_size(o) AS 0::BIGINT;
CREATE MACRO ls_pg_total_relation_size(o) AS 0::BIGINT;
CREATE MACRO ls_pg_indexes_size(o) AS 0::BIGINT;
CREATE MACRO ls_pg_database_size(o) AS 0::BIGINT;
CREATE MACRO ls_pg_get_keywords() AS TABLE SELECT keyword_name AS word, upper(keyword_category[1]) AS catcode,
    keyword_category AS catdesc FROM duckdb_keywords();
CREATE MACRO ls_quote_ident(n) AS CASE WHEN regexp_full_match(n, '[a-z_][a-z0-9_$]*') THEN n
    ELSE '"' || replace(n, '"', '""') || '"' END;
CREATE MACRO ls_quote_literal(v) AS '''' || replace(v::VARCHAR, '''', '''''') || '''';
CREATE MACRO ls_array_lower(a, d) AS CASE WHEN len(a) > 0 THEN 1 END;
CREATE MACRO ls_array_upper(a, d) AS CASE WHEN len(a) > 0 THEN len(a) END;
CREATE MACRO ls__pg_expandarray(a) AS unnest(list_transform(a, lambda x, i: {'x': x, 'n': i}));
CREATE MACRO ls_unquoted(n) AS list_transform(regexp_extract_all(n, '"(?:[^"]|"")*"|[^.]+'),
    lambda p: CASE WHEN p[1] = '"' THEN replace(p[2:-2], '""', '"') ELSE p END);
CREATE MACRO ls_parse_ident(n) AS list_transform(regexp_extract_all(n, '"(?:[^"]|"")*"|[^.]+'),
    lambda p: CASE WHEN p[1] = '"' THEN replace(p[2:-2], '""', '"') ELSE lower(p) END);
CREATE MACRO ls_formatted(f, v) AS CASE WHEN contains(f, '%I') THEN ls_quote_ident(v::VARCHAR) ELSE v::VARCHAR END;
CREATE MACRO ls_format(f) AS f, (f, a) AS printf(replace(f, '%I', '%s'), ls_formatted(f, a)),
    (f, a, b) AS printf(replace(f, '%I', '%s'), ls_formatted(f, a), ls_formatted(f, b));
CREATE MACRO ls_pg_stat_get_numscans(o) AS 0::BIGINT;
CREATE MACRO ls_regclass(n) AS CASE WHEN regexp_full_match(n::VARCHAR, '\d+') THEN TRY_CAST(n::VARCHAR AS BIGINT) ELSE
    (SELECT min(ls_r.oid) FROM ls_relations ls_r WHERE lower(ls_r.name) = lower(ls_unquoted(n::VARCHAR)[-1])
     AND (len(ls_unquoted(n::VARCHAR)) = 1 OR lower(ls_r.schema) = lower(ls_unquoted(n::VARCHAR)[-2]))) END;
CREATE MACRO ls_to_regclass(n) AS ls_regclass(n);
CREATE MACRO ls_relation_name(o) AS coalesce((SELECT CASE WHEN ls_r.schema_oid IN (11, 2200) THEN '' ELSE ls_r.schema || '.' END
    || ls_quote_ident(ls_r.name) FROM ls_relations ls_r WHERE ls_r.oid = TRY_CAST(o AS BIGINT)), o::VARCHAR);
CREATE MACRO ls_regtype(n) AS (SELECT ls_t.oid FROM ls_types ls_t WHERE lower(n) IN (ls_t.name, ls_t.typname) ORDER BY 1 LIMIT 1);
CREATE MACRO ls_to_regtype(n) AS ls_regtype(n);
CREATE MACRO ls_regnamespace(n) AS (SELECT ls_s.oid FROM ls_schemas ls_s WHERE ls_s.name = lower(n));
CREATE MACRO ls_schema_name(o) AS (SELECT ls_s.name FROM ls_schemas ls_s WHERE ls_s.oid = TRY_CAST(o AS BIGINT));
CREATE MACRO ls_format_type(o, m) AS (SELECT CASE WHEN ls_t.typname = 'numeric' AND m > 4
    THEN 'numeric(' || ((m - 4) >> 16) || ',' || ((m - 4) & 65535) || ')' ELSE ls_t.name END FROM ls_types ls_t WHERE ls_t.oid = o);

CREATE VIEW pgc.pg_namespace AS SELECT oid, name AS nspname, 10::BIGINT AS nspowner FROM ls_schemas;
CREATE VIEW pgc.pg_class AS SELECT oid, name AS relname, schema_oid AS relnamespace, 0::BIGINT AS reltype,
    0::BIGINT AS reloftype, 10::BIGINT AS relowner, 2::BIGINT AS relam, oid AS relfilenode, 0::BIGINT AS reltablespace,
    0 AS relpages, (-1)::REAL AS reltuples, 0 AS relallvisible, 0::BIGINT AS reltoastrelid, false AS relhasindex,
    false AS relisshared, 'p' AS relpersistence, kind AS relkind,
    (SELECT count(*) FROM ls_columns c WHERE c.relation = r.oid)::SMALLINT AS relnatts, 0::SMALLINT AS relchecks,
    false AS relhasrules, false AS relhastriggers, false AS relhassubclass, false AS relrowsecurity,
    false AS relforcerowsecurity, true AS relispopulated, 'd' AS relreplident, false AS relispartition,
    0::BIGINT AS relrewrite, [ls_user() || '=r/' || ls_user()] AS relacl FROM ls_relations r;
CREATE VIEW pgc.pg_attribute AS SELECT relation AS attrelid, name AS attname, type AS atttypid, -1 AS attstattarget,
    size AS attlen, number AS attnum, 0 AS attndims, -1 AS attcacheoff, modifier AS atttypmod, size > 0 AS attbyval,
    'i' AS attalign, 'x' AS attstorage, '' AS attcompression, false AS attnotnull, false AS atthasdef,
    false AS atthasmissing, '' AS attidentity, '' AS attgenerated, false AS attisdropped, true AS attislocal,
    0 AS attinhcount, 0::BIGINT AS attcollation FROM ls_columns;
CREATE VIEW pgc.pg_type AS SELECT oid, typname, 11::BIGINT AS typnamespace, 10::BIGINT AS typowner, typlen,
    typlen BETWEEN 1 AND 8 AS typbyval, 'b' AS typtype, typcategory, false AS typispreferred, true AS typisdefined,
    ',' AS typdelim, 0::BIGINT AS typrelid, '-' AS typsubscript,
    coalesce((SELECT e.oid FROM ls_types e WHERE e.typarray = t.oid AND t.oid > 0), 0) AS typelem, typarray,
    CASE typcategory WHEN 'A' THEN 'array_in' ELSE typname || 'in' END AS typinput,
    CASE typcategory WHEN 'A' THEN 'array_out' ELSE typname || 'out' END AS typoutput,
    CASE typcategory WHEN 'A' THEN 'array_recv' ELSE typname || 'recv' END AS typreceive,
    CASE typcategory WHEN 'A' THEN 'array_send' ELSE typname || 'send' END AS typsend, '-' AS typmodin,
    '-' AS typmodout, '-' AS typanalyze, 'i' AS typalign, 'x' AS typstorage, false AS typnotnull,
    0::BIGINT AS typbasetype, -1 AS typtypmod, 0 AS typndims, 0::BIGINT AS typcollation FROM ls_types t;
CREATE VIEW pgc.pg_database AS SELECT 1::BIGINT AS oid, ls_current_database() AS datname, 10::BIGINT AS datdba,
    6 AS encoding, 'c' AS datlocprovider, false AS datistemplate, true AS datallowconn, -1 AS datconnlimit,
    1663::BIGINT AS dattablespace, 'C' AS datcollate, 'C' AS datctype;
CREATE VIEW pgc.pg_am AS SELECT 2::BIGINT AS oid, 'heap' AS amname, 't' AS amtype;
CREATE VIEW pgc.pg_tablespace AS SELECT 1663::BIGINT AS oid, 'pg_default' AS spcname, 10::BIGINT AS spcowner;
CREATE VIEW pgc.pg_roles AS SELECT 10::BIGINT AS oid, ls_user() AS rolname, false AS rolsuper, true AS rolinherit,
    false AS rolcreaterole, false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, -1 AS rolconnlimit,
    false AS rolbypassrls;
CREATE VIEW pgc.pg_authid AS FROM pgc.pg_roles;
CREATE VIEW pgc.pg_user AS SELECT ls_user() AS usename, 10::BIGINT AS usesysid, false AS usecreatedb,
    false AS usesuper, false AS userepl, false AS usebypassrls;
CREATE VIEW pgc.pg_settings AS SELECT name, setting, '' AS category, '' AS short_desc, 'user' AS context,
    'string' AS vartype, 'default' AS source, setting AS boot_val, setting AS reset_val, false AS pending_restart
    FROM ls_session;
CREATE VIEW pgc.pg_tables AS SELECT schema AS schemaname, name AS tablename, ls_user() AS tableowner,
    false AS hasindexes, false AS hasrules, false AS hastriggers, false AS rowsecurity FROM ls_relations WHERE kind = 'r';
CREATE VIEW pgc.pg_stat_user_tables AS SELECT oid AS relid, schema AS schemaname, name AS relname
    FROM ls_relations WHERE kind = 'r' AND schema_oid NOT IN (11, 13000);
CREATE VIEW pgc.pg_stat_activity AS SELECT 1::BIGINT AS datid, ls_current_database() AS datname,
    ls_pg_backend_pid() AS pid, ls_user() AS usename, ls_current_setting('application_name') AS application_name,
    'active' AS state, 'client backend' AS backend_type;
CREATE VIEW pgc.pg_timezone_names AS SELECT 'UTC' AS name, 'UTC' AS abbrev, INTERVAL 0 SECOND AS utc_offset,
    false AS is_dst;
CREATE VIEW pgc.pg_language AS SELECT 14::BIGINT AS oid, 'sql' AS lanname, true AS lanpltrusted;
CREATE VIEW info.information_schema_catalog_name AS SELECT ls_current_database() AS catalog_name;
CREATE VIEW info.schemata AS SELECT ls_current_database() AS catalog_name, name AS schema_name,
    ls_user() AS schema_owner FROM ls_schemas;
CREATE VIEW info.enabled_roles AS SELECT ls_user() AS role_name;
CREATE VIEW info.applicable_roles AS SELECT ls_user() AS grantee, ls_user() AS role_name, 'NO' AS is_grantable;
CREATE VIEW info.tables AS SELECT ls_current_database() AS table_catalog, schema AS table_schema, name AS table_name,
    CASE kind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END AS table_type, 'NO' AS is_insertable_into, 'NO' AS is_typed
    FROM ls_relations;
CREATE VIEW info.table_privileges AS SELECT ls_user() AS grantor, ls_user() AS grantee,
    ls_current_database() AS table_catalog, schema AS table_schema, name AS table_name, 'SELECT' AS privilege_type,
    'NO' AS is_grantable, 'NO' AS with_hierarchy FROM ls_relations;
CREATE VIEW info.role_table_grants AS FROM info.table_privileges;
CREATE VIEW info.columns AS SELECT ls_current_database() AS table_catalog, r.schema AS table_schema,
    r.name AS table_name, c.name AS column_name, c.number::INTEGER AS ordinal_position, 'YES' AS is_nullable,
    CASE t.typcategory WHEN 'A' THEN 'ARRAY' ELSE t.name END AS data_type,
    CASE t.typname WHEN 'int2' THEN 16 WHEN 'int4' THEN 32 WHEN 'int8' THEN 64 WHEN 'float4' THEN 24
        WHEN 'float8' THEN 53 WHEN 'numeric' THEN CASE WHEN c.modifier > 4 THEN (c.modifier - 4) >> 16 END END
        AS numeric_precision,
    CASE WHEN t.typcategory = 'N' AND t.typname <> 'numeric' THEN 2 WHEN t.typname = 'numeric' THEN 10 END
        AS numeric_precision_radix,
    CASE WHEN t.typname = 'numeric' AND c.modifier > 4 THEN (c.modifier - 4) & 65535
        WHEN t.typname IN ('int2', 'int4', 'int8') THEN 0 END AS numeric_scale,
    CASE WHEN t.typname LIKE 'time%' THEN 6 WHEN t.typname = 'date' THEN 0 END AS datetime_precision,
    ls_current_database() AS udt_catalog, 'pg_catalog' AS udt_schema, t.typname AS udt_name,
    c.number::VARCHAR AS dtd_identifier, 'NO' AS is_self_referencing, 'NO' AS is_identity, 'NEVER' AS is_generated,
    'NO' AS is_updatable
    FROM ls_columns c JOIN ls_relations r ON r.oid = c.relation LEFT JOIN ls_types t ON t.oid = c.type;
