"""Metrics of a process, in Prometheus' terms.

Belongs here: histograms that the code observes into, descriptions of metrics, and the text page. It knows no part of
the server. The server's metrics are in ops/metrics/, the compactor's in lake/write/metrics.py.
"""
