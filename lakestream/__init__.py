"""lakestream: a JetStream server whose stream store is a lakehouse."""

__version__ = "0.1.0"
