{# The committed messages of a stream: its table, at a version if one is given. #}
{% macro stream(name, version=none) %}
    {{- return(adapter.dispatch("stream")(name, version)) -}}
{% endmacro %}

{% macro duckdb__stream(name, version) %}
    {%- set at = "" if version is none else ", version => " ~ version -%}
    delta_scan('{{ env_var("LAKESTREAM_LAKE") }}/streams/{{ name }}'{{ at }})
{%- endmacro %}

{% macro spark__stream(name, version) %}
    {%- set at = "" if version is none else " VERSION AS OF " ~ version -%}
    delta.`streams/{{ name }}`{{ at }}
{%- endmacro %}
