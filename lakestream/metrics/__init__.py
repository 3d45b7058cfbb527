"""Metrics of a process, in Prometheus' terms.

Belongs here: histograms that the code observes into, descriptions of metrics, and the text page. It knows no part of
the server. The server's metrics are in ops/metrics/, the compactor's in packages/spark.

In reading order:

- `histogram.py`: Histograms with fixed buckets.
- `family.py`: Descriptions of metrics, and values of them at one moment.
- `page.py`: The page of a scrape, in the text formats of Prometheus and OpenMetrics.
"""
