-- The orders of the table's first commit with messages: time travel by version.
SELECT count(*) AS orders, max(seq) AS last_seq FROM {{ stream("ORDERS", version=1) }}
