-- Queries of the catalogues as tools send them, with what the answer has. Written after the tools' sources: Grafana's
-- Postgres plugin, Metabase's driver, DBeaver's PostgreSQL extension, Superset (SQLAlchemy), DataGrip, Tableau, psycopg2.
-- A query ends with a line `-- expect: …`; `-` expects an answer without rows.

SELECT current_setting('server_version_num')::int/100 AS version
-- expect: 1500
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'
-- expect: -
SELECT
    CASE WHEN
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          )
      THEN quote_ident(table_name)
      ELSE quote_ident(table_schema) || '.' || quote_ident(table_name)
    END AS "table"
    FROM information_schema.tables
    WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache')
    ORDER BY CASE WHEN
          quote_ident(table_schema) IN ('public') THEN 0 ELSE 1 END, 1
-- expect: "ORDERS"
SELECT quote_ident(column_name) AS "column", data_type AS "type"
    FROM information_schema.columns
    WHERE
      CASE WHEN array_length(parse_ident('"ORDERS"'),1) = 2
        THEN quote_ident(table_schema) = (parse_ident('"ORDERS"'))[1]
          AND quote_ident(table_name) = (parse_ident('"ORDERS"'))[2]
        ELSE quote_ident(table_name) = '"ORDERS"'
          AND quote_ident(table_schema) IN (
            SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
            FROM generate_series(
                array_lower(string_to_array(current_setting('search_path'),','),1),
                array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
              string_to_array(current_setting('search_path'),',') s)
      END
-- expect: timestamp with time zone
SELECT floor(extract(epoch from "time")/60)*60 AS "t", count(*) FROM "ORDERS"
    WHERE "time" BETWEEN '2020-01-01T00:00:00Z' AND '2120-01-01T00:00:00Z' GROUP BY 1
-- expect: 3
WITH table_privileges AS (
 SELECT NULL AS role, t.schemaname AS schema, t.objectname AS table,
   pg_catalog.has_any_column_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"', 'update') AS update,
   pg_catalog.has_any_column_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"', 'select') AS select,
   pg_catalog.has_table_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"', 'delete') AS delete
 FROM (
   SELECT schemaname, tablename AS objectname FROM pg_catalog.pg_tables
   UNION
   SELECT schemaname, viewname AS objectname FROM pg_catalog.pg_views
   UNION
   SELECT schemaname, matviewname AS objectname FROM pg_catalog.pg_matviews
 ) t
 WHERE t.schemaname !~ '^pg_' AND t.schemaname <> 'information_schema'
   AND pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage')
)
SELECT t.* FROM table_privileges t
-- expect: ORDERS|f|t|f
SELECT "n"."nspname" AS "schema", "c"."relname" AS "name",
  CASE "c"."relkind" WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' ELSE NULL END AS "type",
  "d"."description" AS "description", NULLIF("stat"."n_live_tup", 0) AS "estimated_row_count"
FROM "pg_catalog"."pg_class" AS "c"
INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid"
LEFT JOIN "pg_catalog"."pg_description" AS "d" ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = 0) AND ("d"."classoid" = 'pg_class'::regclass)
LEFT JOIN "pg_stat_user_tables" AS "stat" ON ("n"."nspname" = "stat"."schemaname") AND ("c"."relname" = "stat"."relname")
WHERE ("c"."relnamespace" = "n"."oid") AND ("n"."nspname" !~ '^pg_') AND ("n"."nspname" <> 'information_schema')
  AND "c"."relkind" IN ('r', 'p', 'v', 'f', 'm') AND ("n"."nspname" IN ('public'))
ORDER BY "type" ASC, "schema" ASC, "name" ASC
-- expect: public|ORDERS|TABLE
SELECT "c"."column_name" AS "name",
  CASE WHEN "c"."udt_schema" IN ('public', 'pg_catalog') THEN FORMAT('%s', "c"."udt_name") ELSE FORMAT('"%s"."%s"', "c"."udt_schema", "c"."udt_name") END AS "database-type",
  "c"."ordinal_position" - 1 AS "database-position", "c"."table_schema" AS "table-schema", "c"."table_name" AS "table-name",
  "pk"."column_name" IS NOT NULL AS "pk?",
  COL_DESCRIPTION(CAST(CAST(FORMAT('%I.%I', CAST("c"."table_schema" AS TEXT), CAST("c"."table_name" AS TEXT)) AS REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment",
  (("column_default" IS NULL) OR (LOWER("column_default") = 'null')) AND ("is_nullable" = 'NO') AS "database-required",
  (("column_default" IS NOT NULL) AND ("column_default" LIKE '%nextval(%')) OR ("is_identity" <> 'NO') AS "database-is-auto-increment"
FROM "information_schema"."columns" AS "c"
LEFT JOIN (SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name" FROM "information_schema"."table_constraints" AS "tc"
  INNER JOIN "information_schema"."key_column_usage" AS "kc" ON ("tc"."constraint_name" = "kc"."constraint_name") AND ("tc"."table_schema" = "kc"."table_schema") AND ("tc"."table_name" = "kc"."table_name")
  WHERE "tc"."constraint_type" = 'PRIMARY KEY') AS "pk"
  ON ("c"."table_schema" = "pk"."table_schema") AND ("c"."table_name" = "pk"."table_name") AND ("c"."column_name" = "pk"."column_name")
WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND ("c"."table_schema" IN ('public')) AND ("c"."table_name" IN ('ORDERS'))
ORDER BY "table-schema", "table-name", "database-position"
-- expect: seq|int8|1|public|ORDERS|f
SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0 AND d.classoid='pg_namespace'::regclass
ORDER BY nspname
-- expect: kv_history
SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name, d.description
FROM pg_catalog.pg_type t
LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem
LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid=d.objoid
WHERE t.typname IS NOT NULL
AND (c.relkind IS NULL OR c.relkind = 'c') AND (et.typcategory IS NULL OR et.typcategory <> 'C')
-- expect: timestamptz
SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname='lake'
-- expect: lake
select * from pg_catalog.pg_settings where name='standard_conforming_strings'
-- expect: on
select string_agg(word, ',' order by word) from pg_catalog.pg_get_keywords() where word <> ALL ('{select,from}'::text[])
-- expect: where
SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr, pg_catalog.pg_get_partkeydef(c.oid) as partition_key
FROM pg_catalog.pg_class c
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_class'::regclass
WHERE c.relnamespace=2200 AND c.relkind not in ('i','I','c')
-- expect: ORDERS
SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description,dep.objid
FROM pg_catalog.pg_attribute a
INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid)
LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum)
LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)
LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i' and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid
WHERE NOT a.attisdropped AND c.oid='"ORDERS"'::regclass ORDER BY a.attnum
-- expect: subject
SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description, case when c.contype='c' then substring(pg_get_constraintdef(c.oid), 7) else null end consrc_copy
FROM pg_catalog.pg_constraint c
INNER JOIN pg_catalog.pg_class t ON t.oid=c.conrelid
LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid=c.confrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_constraint'::regclass
WHERE c.conrelid=1 ORDER BY c.oid
-- expect: -
SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,pg_catalog.pg_get_expr(i.indexprs, i.indrelid, true) as expr,pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans
FROM pg_catalog.pg_index i
INNER JOIN pg_catalog.pg_class c ON c.oid=i.indexrelid
INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid
LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid
WHERE i.indrelid=1 ORDER BY tabrelname, c.relname
-- expect: -
select c.oid,pg_catalog.pg_total_relation_size(c.oid) as total_rel_size,pg_catalog.pg_relation_size(c.oid) as rel_size
FROM pg_class c WHERE c.relnamespace=2200
-- expect: 0
SELECT a.oid,a.*,pd.description FROM pg_catalog.pg_roles a LEFT JOIN pg_catalog.pg_shdescription pd ON a.oid=pd.objoid ORDER BY a.rolname
-- expect: ann
SELECT current_schema(),session_user
-- expect: public|ann
SELECT n.nspname = ANY(current_schemas(true)), n.nspname, t.typname FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = 1184
-- expect: t|pg_catalog|timestamptz
SELECT t.oid, typarray FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'hstore'
-- expect: -
select N.oid::bigint as id, N.nspname as name, D.description from pg_catalog.pg_namespace N left join pg_catalog.pg_description D on N.oid = D.objoid order by case when nspname = pg_catalog.current_schema() then -1::bigint else N.oid::bigint end
-- expect: public
select T.relkind as table_kind, T.relname as table_name, T.oid as table_id, pg_catalog.pg_get_userbyid(T.relowner) as "owner" from pg_catalog.pg_class T where relnamespace = 'public'::regnamespace and relkind in ('r', 'm', 'v', 'f', 'p') order by table_kind, table_id
-- expect: ORDERS
select version(), current_database(), inet_server_addr(), pg_is_in_recovery()
-- expect: PostgreSQL 15
SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false))
-- expect: public|ORDERS|BASE TABLE
SELECT column_name, udt_name, is_nullable, character_maximum_length, numeric_precision FROM information_schema.columns WHERE table_name = 'ORDERS' AND table_schema = 'public' ORDER BY ordinal_position
-- expect: seq|int8|YES
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::regtype, a.attrelid::regclass::text FROM pg_attribute a WHERE a.attrelid = 'public."ORDERS"'::regclass AND a.attnum > 0 AND NOT a.attisdropped
-- expect: data|bytea|bytea|"ORDERS"
SELECT pg_catalog.pg_get_viewdef('pg_tables'::regclass, true)
-- expect: 
SELECT schemaname, relname, n_live_tup FROM pg_stat_user_tables ORDER BY 1, 2
-- expect: public|ORDERS
SELECT pid, usename, state FROM pg_stat_activity WHERE datname = current_database()
-- expect: ann|active
SELECT conname, conkey FROM pg_constraint WHERE contype = 'p' AND conrelid = (SELECT oid FROM pg_class WHERE relname = 'ORDERS')
-- expect: -
SELECT name, abbrev, utc_offset FROM pg_timezone_names
-- expect: UTC
SELECT set_config('bytea_output','hex',false) FROM pg_settings WHERE name = 'bytea_output'
-- expect: hex
