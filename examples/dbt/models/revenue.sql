-- Orders and revenue of each country. The payload is JSON in a binary column.
{% if target.type == "duckdb" %}{% set price = "(decode(data)::JSON->>'price')::DECIMAL(9, 2)" %}
{% else %}{% set price = "CAST(get_json_object(CAST(data AS STRING), '$.price') AS DECIMAL(9, 2))" %}{% endif %}
SELECT split_part(subject, '.', 2) AS country, count(*) AS orders, sum({{ price }}) AS revenue
FROM {{ stream("ORDERS") }}
GROUP BY 1
