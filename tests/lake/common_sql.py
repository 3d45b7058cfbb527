"""Statements in what DuckDB's SQL and Spark's have in common, over a stream with payloads of any kind."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

from pyspark.sql import Row

VALUES = r"""
seq + 1 | seq - 7 | seq * 3 | seq / 8 | seq % 7 | -seq | +seq | seq * 1.5 | seq + 0.25 | (seq + 2) * (seq - 2)
7 - seq % 4 | abs(50 - seq) | sign(seq - 50) | sqrt(seq) | power(seq, 2) | exp(seq / 100) | ln(seq) | log10(seq)
log2(seq) | cbrt(seq) | ceil(seq / 3) | floor(seq / 3) | round(seq / 3, 2) | round(seq / 8) | pi() * seq | sin(seq)
cos(seq) | tan(seq) | atan(seq) | asin(seq / 1000) | acos(seq / 1000) | degrees(seq) | radians(seq)
greatest(seq, 50) | least(seq, 50, 20) | factorial(CAST(seq % 10 AS INT)) | seq & 12 | seq | bit_count(seq)
CAST(seq AS DOUBLE) | CAST(seq AS STRING) | CAST(seq AS SMALLINT) | CAST(seq AS DECIMAL(9, 2)) | CAST('12' AS INT)
CAST('1.5' AS DOUBLE) | CAST(seq > 50 AS INT) | CAST('2026-05-01' AS DATE) | CAST(time AS DATE) | 1.5 * seq | seq > 50
seq >= 50 | seq = 50 | seq <> 50 | seq != 50 | seq < 50 AND seq > 10 | seq < 10 OR seq > 90 | NOT seq > 50
seq BETWEEN 10 AND 20 | seq NOT BETWEEN 10 AND 20 | seq IN (1, 2, 3) | seq NOT IN (1, 2, 3) | headers IS NULL
headers IS NOT NULL | seq IS DISTINCT FROM 50 | seq IS NOT DISTINCT FROM 50 | NULL IS NULL | coalesce(NULL, seq)
nullif(seq % 3, 0) | ifnull(NULL, seq) | coalesce(nullif(seq % 5, 0), 100)
CASE WHEN seq < 10 THEN 'few' WHEN seq < 50 THEN 'some' ELSE 'many' END
CASE seq % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END | if(seq > 50, 'big', 'small') | (seq > 50) = (seq > 60)
true AND seq > 3 | upper(subject) | lower(subject) | length(subject) | char_length(subject) | octet_length(data)
bit_length(subject) | reverse(subject) | subject || '!' | concat(subject, '-', seq)
concat_ws('-', subject, 'x', 'y') | repeat('ab', 3) | replace(subject, '.', '/') | trim('  a b  ') | ltrim('  a')
rtrim('a  ') | trim(BOTH 'x' FROM 'xxaxx') | trim(LEADING 'x' FROM 'xxaxx') | trim(TRAILING 'x' FROM 'xax')
substring(subject, 1, 6) | substring(subject, 3) | substr(subject, 2, 3) | substring(subject FROM 2 FOR 4)
left(subject, 3) | right(subject, 3) | lpad(subject, 12, '*') | rpad(subject, 12, '*') | lpad('abcdef', 3, ' ')
position('.' IN subject) | instr(subject, '.') | ascii(subject) | chr(65) | contains(subject, '1.x')
split_part(subject, '.', 1) | split_part(subject, '.', 2) | split_part(subject, '.', 9) | subject LIKE 'orders.%'
subject LIKE '%.x' | subject LIKE 'orders._.x' | subject NOT LIKE '%2%' | subject ILIKE 'ORDERS.1%'
subject = 'orders.1.x' | subject > 'orders.2' | subject IN ('orders.1.x', 'orders.3.x')
translate(subject, 'os', '05') | md5(subject) | hex(data) | levenshtein(subject, 'orders')
regexp_extract(subject, '([0-9])', 1) | regexp_replace(subject, '[0-9]', '#') | 'plain' | 'Zoë' | '' | 'a"b'
'日本語' | length('Zoë') | upper('zoë') | lower('ÄÖÜ') | bit_length('Zoë') | reverse('añb') | 1 | -1 | 1.5
1e3 | 9223372036854775807 | true | false | NULL | 1 + 2 * 3 | (1 + 2) * 3 | 7 % 3 | -7 % 3 | 7.5 % 2 | 1 / 4
year(time) | month(time) | day(time) | hour(time) | minute(time) | quarter(time) | dayofyear(time) | weekofyear(time)
dayofmonth(time) | extract(year FROM time) | extract(month FROM time) | extract(day FROM time)
extract(hour FROM time) | extract(minute FROM time) | date_trunc('YEAR', time) | date_trunc('month', time)
date_trunc('DAY', time) | date_trunc('hour', time) | date_trunc('minute', time)
time > TIMESTAMP '2020-01-01 00:00:00' | time + INTERVAL 1 DAY | time - INTERVAL 90 MINUTE | time + INTERVAL '2' HOUR
last_day(time) | TIMESTAMP '2026-05-01 12:00:00' < time | DATE '2026-05-01' | DATE '2026-05-01' < DATE '2026-06-01'
CAST(time AS DATE) > DATE '2020-02-02' | year(DATE '2026-05-01') | month(DATE '2026-05-01') | make_date(2026, 5, 1)
last_day(DATE '2026-02-03') | time_ns | time_ns % 1000 | time_ns / 1000000000 | data IS NULL | data = data
seq IN (SELECT max(seq) FROM {t}) | (SELECT count(*) FROM {t}) | (SELECT min(seq) FROM {t})
EXISTS (SELECT 1 FROM {t} u WHERE u.seq = 5) | (SELECT max(subject) FROM {t} WHERE seq < 10)
isnan(CAST('NaN' AS DOUBLE)) | row_number() OVER (ORDER BY seq)
row_number() OVER (PARTITION BY subject ORDER BY seq DESC) | rank() OVER (ORDER BY subject)
dense_rank() OVER (ORDER BY subject) | ntile(4) OVER (ORDER BY seq) | lag(seq) OVER (ORDER BY seq)
lead(seq, 2) OVER (ORDER BY seq) | lag(seq, 1, 0) OVER (PARTITION BY subject ORDER BY seq)
first_value(seq) OVER (PARTITION BY subject ORDER BY seq) | count(*) OVER () | sum(seq) OVER (ORDER BY seq)
avg(seq) OVER (ORDER BY seq ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) | count(*) OVER (PARTITION BY subject)
max(seq) OVER (PARTITION BY subject) | last_value(seq) OVER (ORDER BY seq) | cume_dist() OVER (ORDER BY seq)
percent_rank() OVER (ORDER BY seq)
nth_value(seq, 2) OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
min(seq) OVER (ORDER BY seq DESC)
"""
"""Values of each row, between bars."""

AGGREGATES = r"""
count(*) | count(headers) | count(DISTINCT subject) | sum(seq) | avg(seq) | min(seq) | max(seq) | min(subject)
max(time) | min(time) | sum(seq) FILTER (WHERE seq > 50) | count(*) FILTER (WHERE headers IS NULL)
count_if(seq > 50) | max_by(subject, seq) | min_by(subject, seq) | stddev(seq) | stddev_samp(seq) | stddev_pop(seq)
variance(seq) | var_pop(seq) | var_samp(seq) | corr(seq, seq * seq) | covar_pop(seq, seq * seq) | covar_samp(seq, seq)
bool_and(seq > 0) | bool_or(seq > 99) | max(seq % 7) | median(seq) | sum(DISTINCT seq % 10) | avg(seq) + 1
regr_slope(seq, seq * seq) | regr_intercept(seq, seq) | regr_count(seq, seq) | bit_and(seq)
bit_or(seq) | bit_xor(seq) | sum(seq) / count(*) | sum(length(subject)) | max(seq) - min(seq)
sum(CASE WHEN seq > 50 THEN 1 ELSE 0 END) | count(NULL) | sum(seq * 1.5) | max(octet_length(data))
"""
"""Aggregates, between bars."""

STATEMENTS = """
SELECT subject, count(*) AS n, min_by(seq, time_ns) AS a, max(seq) AS b FROM {t} GROUP BY 1 ORDER BY 1
SELECT subject, sum(seq) AS s FROM {t} GROUP BY subject HAVING sum(seq) > 10 ORDER BY s DESC, subject
SELECT subject, seq % 2 AS odd, count(*) AS n FROM {t} GROUP BY ALL ORDER BY subject, odd
SELECT subject, count(*) AS n FROM {t} GROUP BY ROLLUP (subject) ORDER BY n DESC, subject
SELECT count(*) AS n FROM {t} GROUP BY CUBE (subject, seq % 2) ORDER BY n
SELECT count(*) AS n FROM {t} GROUP BY GROUPING SETS ((subject), (seq % 2), ()) ORDER BY n
SELECT DISTINCT subject FROM {t} ORDER BY subject
SELECT DISTINCT seq % 3 AS a, seq % 2 AS b FROM {t} ORDER BY a, b
SELECT seq FROM {t} ORDER BY subject DESC, seq ASC
SELECT seq AS s FROM {t} ORDER BY s DESC LIMIT 5 OFFSET 3
SELECT seq FROM {t} WHERE subject LIKE 'orders.1%' ORDER BY seq DESC LIMIT 3
SELECT seq FROM {t} WHERE subject = 'orders.2.x' AND seq > 10 ORDER BY seq
SELECT seq FROM {t} WHERE seq < 5 UNION ALL SELECT seq FROM {t} WHERE seq > 97 ORDER BY seq
SELECT subject FROM {t} UNION SELECT 'other' ORDER BY subject
SELECT seq FROM {t} WHERE seq < 20 INTERSECT SELECT seq FROM {t} WHERE seq > 10 ORDER BY seq
SELECT seq FROM {t} WHERE seq < 20 EXCEPT SELECT seq FROM {t} WHERE seq > 10 ORDER BY seq
SELECT a.seq FROM {t} a ANTI JOIN {t} VERSION AS OF 1 b ON a.seq = b.seq ORDER BY a.seq
SELECT a.seq FROM {t} a SEMI JOIN {t} VERSION AS OF 1 b ON a.seq = b.seq ORDER BY a.seq
SELECT a.seq, b.seq AS other FROM {t} a JOIN {t} b ON a.seq = b.seq + 1 ORDER BY a.seq
SELECT a.seq, b.seq AS other FROM {t} a LEFT JOIN {t} b ON a.seq = b.seq + 1 ORDER BY a.seq
SELECT b.seq FROM {t} a RIGHT JOIN {t} b ON a.seq = b.seq + 1 ORDER BY b.seq
SELECT coalesce(a.seq, b.seq) AS s FROM {t} a FULL JOIN {t} VERSION AS OF 1 b ON a.seq = b.seq ORDER BY s
SELECT count(*) AS n FROM {t} a CROSS JOIN {t} b
SELECT count(*) AS n FROM {t} a, {t} b WHERE a.seq = b.seq
SELECT count(*) AS n FROM {t} a JOIN {t} b USING (seq)
SELECT seq, count(*) AS n FROM {t} JOIN (SELECT seq FROM {t} WHERE seq < 9) USING (seq) GROUP BY seq ORDER BY seq
WITH w AS (SELECT * FROM {t} WHERE seq < 20) SELECT seq FROM w WHERE seq IN (SELECT max(seq) FROM w)
WITH a AS (SELECT seq FROM {t}), b AS (SELECT seq + 1 AS seq FROM a) SELECT sum(seq) AS s FROM b
WITH w (s) AS (SELECT seq FROM {t}) SELECT max(s) AS m FROM w
SELECT m FROM (SELECT max(seq) AS m FROM {t}) x
SELECT x.m FROM (SELECT subject, max(seq) AS m FROM {t} GROUP BY subject) AS x ORDER BY x.m
SELECT seq FROM {t} o WHERE seq = (SELECT max(seq) FROM {t} i WHERE i.subject = o.subject) ORDER BY seq
SELECT seq FROM {t} o WHERE EXISTS (SELECT 1 FROM {t} i WHERE i.seq = o.seq + 1) ORDER BY seq
SELECT seq FROM {t} o WHERE NOT EXISTS (SELECT 1 FROM {t} i WHERE i.seq = o.seq + 1) ORDER BY seq
SELECT date_trunc('DAY', time) AS day, count(*) AS n FROM {t} GROUP BY 1 ORDER BY 1
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(x, y) ORDER BY x
SELECT v.y, o.seq FROM {t} o JOIN (VALUES (1, 'a'), (2, 'b')) AS v(x, y) ON o.seq = v.x ORDER BY seq
SELECT seq, r FROM (SELECT seq, row_number() OVER (PARTITION BY subject ORDER BY seq DESC) AS r FROM {t}) w WHERE r =
    1 ORDER BY seq
SELECT subject, max(n) AS n FROM (SELECT subject, count(*) AS n FROM {t} GROUP BY subject) w GROUP BY subject ORDER BY
    subject
SELECT sum(seq) OVER w AS s FROM {t} WINDOW w AS (ORDER BY seq) ORDER BY seq
SELECT count(*) AS n FROM {t} VERSION AS OF 0
SELECT count(*) AS n FROM {t} VERSION AS OF 1
SELECT count(*) AS n FROM {t} VERSION AS OF 2
SELECT count(*) AS n FROM {t} VERSION AS OF 3
SELECT count(*) AS n FROM {t} FOR VERSION AS OF 3
SELECT seq FROM {t} VERSION AS OF 4 WHERE seq > 55 ORDER BY seq
SELECT o.seq FROM {t} VERSION AS OF 2 o WHERE o.seq < 7 ORDER BY o.seq
SELECT o.seq FROM {t} VERSION AS OF 2 AS o ORDER BY o.seq
SELECT count(*) AS n FROM {t} TIMESTAMP AS OF '{early}'
SELECT count(*) AS n FROM {t} TIMESTAMP AS OF '{middle}'
SELECT count(*) AS n FROM {t} TIMESTAMP AS OF TIMESTAMP '{middle}'
SELECT count(*) AS n FROM {t} FOR TIMESTAMP AS OF '{middle}' o WHERE o.seq > 3
SELECT count(*) AS n FROM {t} TIMESTAMP AS OF TIMESTAMP '{early}' + INTERVAL 1 SECOND - INTERVAL 1 SECOND
SELECT n.seq FROM {t} n LEFT JOIN {t} VERSION AS OF 2 w ON n.seq = w.seq WHERE w.seq IS NULL ORDER BY n.seq
SELECT w.seq FROM {t} VERSION AS OF 2 w EXCEPT SELECT seq FROM {t} ORDER BY seq
WITH w AS (SELECT * FROM {t} VERSION AS OF 2) SELECT count(*) AS n FROM w
SELECT (SELECT count(*) FROM {t} VERSION AS OF 1) AS a, (SELECT count(*) FROM {t}) AS b
SELECT count(*) AS n FROM as_of('ORDERS', {ns})
SELECT seq FROM as_of('ORDERS', '{text}') ORDER BY seq
SELECT o.seq FROM as_of('ORDERS', '{text}') o WHERE o.subject = 'orders.1.x' ORDER BY o.seq
SELECT n.seq FROM {t} n ANTI JOIN as_of('ORDERS', '{text}') w ON n.seq = w.seq ORDER BY n.seq
SELECT a.n, b.n AS m FROM (SELECT count(*) AS n FROM as_of('ORDERS', {ns})) a, (SELECT count(*) AS n FROM {t}) b
SELECT id, price, who, ok FROM {p} ORDER BY id
SELECT id, day, moment, amount FROM {p} ORDER BY id
SELECT id, tags FROM {p} ORDER BY id
SELECT who, sum(price) AS s, avg(amount) AS a, max(day) AS d FROM {p} GROUP BY who ORDER BY who NULLS LAST
SELECT place.city, count(*) AS n FROM {p} GROUP BY place.city ORDER BY n, place.city
SELECT o.place.city AS c FROM {p} o WHERE o.id IN (3, 4) ORDER BY o.id
SELECT id FROM {p} WHERE who IS NULL OR ok ORDER BY id
SELECT count(who) AS a, count(ok) AS b, count_if(ok) AS c, count(DISTINCT place.city) AS d FROM {p}
SELECT day, sum(amount) AS s, min(amount) AS a, max(amount) AS b FROM {p} GROUP BY day ORDER BY day
SELECT amount + 1 AS a, amount * 2 AS b, -amount AS c, abs(amount) AS d, round(amount, 1) AS e FROM {p} ORDER BY id
SELECT CAST(price AS STRING) AS a, CAST(amount AS DOUBLE) AS b, CAST(ok AS INT) AS c FROM {p} ORDER BY id
SELECT id FROM {p} WHERE array_contains(tags, 'tag 3') ORDER BY id
SELECT array_position(tags, 'tag 3') AS a FROM {p} WHERE id = 3
SELECT year(day) AS a, month(day) AS b, day(day) AS c, quarter(day) AS d FROM {p} ORDER BY id
SELECT date_trunc('HOUR', moment) AS h, count(*) AS n FROM {p} GROUP BY 1 ORDER BY 1
SELECT id FROM {p} WHERE moment > TIMESTAMP '2026-05-01 05:00:00' AND day >= DATE '2026-05-03' ORDER BY id
SELECT id FROM {p} WHERE amount BETWEEN 2.5 AND 5 ORDER BY id
SELECT id, lag(price) OVER (PARTITION BY who ORDER BY id) AS b FROM {p} ORDER BY id
SELECT who, id FROM (SELECT who, id, rank() OVER (PARTITION BY who ORDER BY price DESC) AS r FROM {p}) w WHERE r = 1
    ORDER BY id
SELECT p.id, o.subject FROM {p} p JOIN {t} o ON p.id = o.seq ORDER BY p.id
SELECT p.id, o.seq FROM {p} p LEFT JOIN {t} VERSION AS OF 1 o ON p.id = o.seq AND p.ok ORDER BY p.id
SELECT CASE WHEN price > 20 THEN 'dear' WHEN price > 5 THEN 'fair' END AS c, count(*) AS n FROM {p}
    GROUP BY 1 ORDER BY n
SELECT coalesce(who, 'nobody') AS w, sum(coalesce(amount, 0)) AS s FROM {p} GROUP BY 1 ORDER BY 1
SELECT count(*) AS n, sum(price) AS s FROM {p} VERSION AS OF 0
SELECT count(*) AS n, sum(price) AS s FROM {p} VERSION AS OF 1
SELECT count(*) AS n FROM {p} TIMESTAMP AS OF '{typed}'
SELECT n.id FROM {p} n ANTI JOIN {p} VERSION AS OF 0 w ON n.id = w.id ORDER BY n.id
SELECT a.id, b.price FROM {p} VERSION AS OF 0 a JOIN {p} b ON a.id = b.id AND a.price = b.price ORDER BY a.id
SELECT (SELECT sum(price) FROM {p} VERSION AS OF 0) AS a, (SELECT sum(price) FROM {p}) AS b
SELECT count(*) AS n, max(seq) AS m FROM (TABLE {t}) x
SELECT tags, place, day, amount, moment FROM {p} VERSION AS OF 0 ORDER BY id
SELECT min(who) AS a, max(tags) AS b, min(moment) AS c, max(place.city) AS d FROM {p}
SELECT place, count(*) AS n FROM {p} GROUP BY place ORDER BY place.city
SELECT DISTINCT who, ok FROM {p} ORDER BY who NULLS FIRST, ok NULLS FIRST
SELECT a.id FROM {p} a JOIN {p} b ON a.moment < b.moment AND a.day = b.day AND b.id = 10 ORDER BY a.id
SELECT id, sum(amount) OVER (PARTITION BY day ORDER BY id) AS s FROM {p} ORDER BY id
SELECT id FROM {p} WHERE place.city LIKE 'K%1' OR tags IS NULL ORDER BY id
SELECT id, price IS NULL AS a, amount > price AS b, day < CAST(moment AS DATE) AS c FROM {p} ORDER BY id
SELECT seq, subject, item, price, paid FROM QUOTES_json ORDER BY seq
SELECT item, sum(price) AS s, max(paid) AS d, count(*) AS n FROM QUOTES_json GROUP BY item ORDER BY item NULLS LAST
SELECT q.seq FROM QUOTES_json q JOIN QUOTES_json r ON q.paid = r.paid AND q.seq = r.seq ORDER BY q.seq
SELECT q.item, o.seq FROM QUOTES_json q JOIN {t} o ON q.seq = o.seq ORDER BY o.seq
SELECT year(paid) AS a, upper(item) AS b, price * 2 AS c FROM QUOTES_json WHERE paid > DATE '2026-05-04' ORDER BY seq
SELECT seq, subject, reason, data FROM QUOTES_json_misfits ORDER BY seq
SELECT count(*) AS n FROM QUOTES_json WHERE price IS NULL OR item IS NULL
WITH q AS (SELECT * FROM QUOTES_json WHERE price > 3) SELECT max(seq) AS m, min(item) AS i FROM q
SELECT key, value, revision FROM kv.conf ORDER BY key
SELECT key, value, revision, operation FROM kv_history.conf ORDER BY revision
SELECT key, value FROM kv.conf VERSION AS OF 2 ORDER BY key
SELECT key, value FROM kv.conf VERSION AS OF 4 ORDER BY key
SELECT key, revision FROM kv.conf TIMESTAMP AS OF '{put}' ORDER BY key
SELECT c.key, h.revision FROM kv.conf c JOIN kv_history.conf h ON c.key = h.key ORDER BY h.revision
SELECT operation, count(*) AS n FROM kv_history.conf GROUP BY operation ORDER BY operation
SELECT key FROM kv.conf WHERE created <= (SELECT max(time) FROM delta.`streams/KV_conf`) ORDER BY key
SELECT count(*) AS n FROM kv.conf c ANTI JOIN kv_history.conf h ON c.revision = h.revision
SELECT id FROM {p} VERSION AS OF 0 UNION SELECT seq FROM {t} VERSION AS OF 1 WHERE seq < 3 ORDER BY id
"""
"""Whole statements; a line with blanks at its beginning goes on."""


TYPED_VALUES = r"""
id | price | amount | who | ok | kind | placed | day | place | lines | tags | counts | raw | note | schema
id + 1 | id % 7 | id * 1.5 | id / 8 | -id | abs(price) | price * 2 | price / 3 | price + id | round(price, 1)
floor(price) | ceil(price) | sign(price) | price > id | price IS NULL | CAST(price AS STRING) | CAST(id AS DOUBLE)
amount + 1 | amount - 2 | amount * 2 | -amount | abs(amount) | amount > 5 | amount = 3.7 | amount BETWEEN 1 AND 9
CAST(amount AS DOUBLE) | CAST(amount AS DECIMAL(20, 1)) | amount + amount | greatest(amount, 3) | round(amount, 1)
coalesce(amount, 0) | CAST(amount AS DOUBLE) / 4 | CAST(amount AS STRING) | amount IN (0.37, 37)
upper(who) | length(who) | who IS NULL | coalesce(who, 'nobody') | who || '!' | who LIKE 'Zoë%' | who = 'Zoë 1'
substring(who, 1, 3) | nullif(who, 'Zoë 2') | CASE WHEN who IS NULL THEN 0 ELSE id END
NOT ok | ok AND id > 10 | ok OR price > 3 | CAST(ok AS INT) | ok IS NULL | ok = (id > 3) | CAST(ok AS STRING)
kind = 'BUY' | kind IN ('SELL', 'SWAP') | lower(kind) | kind < 'SELL' | kind LIKE 'S%' | length(kind)
CASE kind WHEN 'BUY' THEN 1 WHEN 'SELL' THEN -1 ELSE 0 END | kind || id
year(placed) | month(placed) | hour(placed) | minute(placed) | date_trunc('DAY', placed) | CAST(placed AS DATE)
placed > TIMESTAMP '2026-05-04 12:00:00' | placed + INTERVAL 1 DAY | placed - INTERVAL 90 MINUTE | last_day(placed)
date_trunc('hour', placed) | placed = placed | extract(day FROM placed) | placed < time | quarter(placed)
year(day) | month(day) | day + INTERVAL 1 DAY > day | day = DATE '2026-05-03' | last_day(day)
day < CAST(placed AS DATE)
CAST(day AS STRING) | date_trunc('month', day) | dayofyear(day) | coalesce(day, DATE '2020-01-01')
place.city | place.at | place.at.lat | place.at.lat * 2 | upper(place.city) | place.at.lat > 3 | place IS NULL
place.at.lon = -0.5 | coalesce(place.city, '-') | place = place | CASE WHEN place.at.lat > 5 THEN place.city END
array_contains(tags, 'b') | tags IS NULL | tags = tags
array_contains(tags, place.city) | reverse(kind)
counts['a'] | counts['b'] + 1 | counts['c'] | map_keys(counts) | map_values(counts) | cardinality(counts)
counts['a'] = id | array_contains(map_keys(counts), 'a') | lines IS NULL | lines = lines | octet_length(raw)
hex(raw) | raw = data | raw IS NULL | octet_length(data) > 0 | upper(schema) | schema IS NULL | coalesce(note, who)
lag(price) OVER (ORDER BY seq) | sum(amount) OVER (PARTITION BY kind ORDER BY seq) | max(placed) OVER (ORDER BY seq)
row_number() OVER (PARTITION BY place.city ORDER BY seq) | first_value(who) OVER (PARTITION BY kind ORDER BY seq)
"""
"""Values of each row of a table with columns from a schema, between bars."""

TYPED_AGGREGATES = r"""
count(*) | count(id) | count(who) | count(DISTINCT who) | count(DISTINCT place.city) | sum(price) | avg(price)
min(day) | sum(amount) | avg(CAST(amount AS DOUBLE)) | min(amount) | max(amount) | max(placed) | min(placed)
max(day) | min(who) | max(kind)
bool_and(ok) | bool_or(ok) | count_if(coalesce(ok, false))
sum(place.at.lat) | max(place.at.lat) | max_by(who, id) | min_by(place, id)
max_by(tags, id) | sum(counts['a']) | max(counts['b']) | count(note) | max(note) | median(price) | stddev(price)
sum(amount) FILTER (WHERE ok) | count(*) FILTER (WHERE array_contains(tags, 'b')) | count(DISTINCT place) | max(place)
count(DISTINCT tags) | min(tags) | max(schema) | sum(octet_length(raw)) | count(DISTINCT raw) | corr(price, id)
sum(CASE WHEN kind = 'BUY' THEN price ELSE -price END) | count(DISTINCT kind) | sum(DISTINCT amount) | max(lines)
"""
"""Aggregates over such a table, between bars."""

TYPED_STATEMENTS = """
SELECT * FROM (SELECT id, lines, place, counts, schema FROM {t}) x WHERE id IS NOT NULL ORDER BY id
SELECT place, count(*) AS n FROM {t} GROUP BY place ORDER BY n, place.at.lat NULLS LAST
SELECT place.city AS c, kind, sum(amount) AS s FROM {t} GROUP BY ROLLUP (place.city, kind)
    ORDER BY c NULLS FIRST, kind NULLS FIRST, s NULLS FIRST
SELECT DISTINCT place.city, ok FROM {t} ORDER BY 1 NULLS FIRST, 2 NULLS FIRST
SELECT DISTINCT tags FROM {t} WHERE tags IS NOT NULL ORDER BY tags
SELECT DISTINCT day, kind FROM {t} WHERE day > DATE '2026-05-02' ORDER BY day, kind
SELECT a.id, b.id AS other FROM {t} a JOIN {t} b ON a.place = b.place AND a.seq <= b.seq ORDER BY a.id
SELECT a.id, b.id AS other FROM {t} a JOIN {t} b ON a.placed = b.placed AND a.id < b.id ORDER BY 1, 2
SELECT a.id, b.id AS other FROM {t} a JOIN {t} b ON a.amount = b.amount AND a.tags = b.tags ORDER BY a.id
SELECT id FROM {t} WHERE amount > (SELECT avg(amount) FROM {t}) ORDER BY id
SELECT id FROM {t} o WHERE price = (SELECT max(price) FROM {t} i WHERE i.kind = o.kind) ORDER BY id
SELECT id FROM {t} ORDER BY place.at.lat DESC NULLS LAST, id LIMIT 5
SELECT id FROM {t} ORDER BY amount NULLS FIRST, seq LIMIT 7
SELECT id, r FROM (SELECT id, rank() OVER (PARTITION BY kind ORDER BY price DESC) AS r FROM {t}) w WHERE r < 3
    ORDER BY id NULLS LAST
SELECT kind FROM {t} WHERE id < 9 UNION SELECT place.city FROM {t} WHERE id < 9 ORDER BY 1 NULLS LAST
SELECT place FROM {t} WHERE id < 9 INTERSECT SELECT place FROM {t} WHERE id < 20 ORDER BY place
SELECT tags FROM {t} WHERE id < 9 EXCEPT SELECT tags FROM {t} WHERE id > 77 ORDER BY tags
WITH w AS (SELECT kind, sum(amount) AS s FROM {t} GROUP BY kind) SELECT t.id, w.s FROM {t} t JOIN w ON t.kind = w.kind
    ORDER BY t.id
SELECT date_trunc('DAY', placed) AS d, count(*) AS n, max(place.at.lat) AS m FROM {t} GROUP BY 1 ORDER BY 1 NULLS LAST
SELECT schema, count(*) AS n, count(note) AS m FROM {t} GROUP BY schema ORDER BY schema NULLS LAST
SELECT seq, data FROM {t} WHERE schema IS NULL ORDER BY seq
SELECT seq, schema, rule FROM {m} ORDER BY seq
SELECT m.seq, t.subject FROM {m} m JOIN {t} t ON m.seq = t.seq ORDER BY m.seq
SELECT count(*) AS n, sum(price) AS s, max(place) AS p FROM {t} VERSION AS OF {first}
SELECT id, lines, amount, counts FROM {t} VERSION AS OF {first} WHERE id > 30 ORDER BY id
SELECT count(*) AS n, sum(amount) AS s, min(placed) AS p FROM {t} TIMESTAMP AS OF '{at}'
SELECT id, place, tags FROM as_of('{n}', {ns}) ORDER BY seq
SELECT kind, sum(amount) AS s FROM as_of('{n}', '{text}') GROUP BY kind ORDER BY kind NULLS LAST
SELECT n.id FROM {t} n ANTI JOIN {t} VERSION AS OF {first} o ON n.id = o.id ORDER BY n.id NULLS LAST
SELECT o.id, o.amount FROM {t} VERSION AS OF {first} o JOIN {t} n ON o.place = n.place AND o.id = n.id ORDER BY o.id
"""
"""Whole statements over such a table, and that of its misfits."""


def values() -> list[str]:
    """Return the values."""
    return _between_bars(VALUES)


def aggregates() -> list[str]:
    """Return the aggregates."""
    return _between_bars(AGGREGATES)


def statements() -> list[str]:
    """Return the whole statements."""
    return re.split(r"\n(?! )", STATEMENTS.strip())


def typed_values() -> list[str]:
    """Return the values of tables with columns from a schema."""
    return _between_bars(TYPED_VALUES)


def typed_aggregates() -> list[str]:
    """Return the aggregates over them."""
    return _between_bars(TYPED_AGGREGATES)


def typed_statements() -> list[str]:
    """Return the whole statements over them."""
    return re.split(r"\n(?! )", TYPED_STATEMENTS.strip())


def _between_bars(text: str) -> list[str]:
    return [each.strip() for line in text.strip().splitlines() for each in line.split(" | ") if each.strip()]


def comparable(value: object) -> object:
    """Return a value in a form that both engines have.

    PySpark's times, which are without a zone in that of the machine, are in UTC, its rows are dicts; decimals are
    floats, of which the last digits are left out.
    """
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC)
    if isinstance(value, float | Decimal):
        return float(f"{value:.9g}")
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value
