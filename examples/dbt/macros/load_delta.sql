{% macro load_delta() %}
    {%- if target.type == "duckdb" -%} LOAD '{{ env_var("DELTA_EXTENSION") }}' {%- endif -%}
{% endmacro %}
