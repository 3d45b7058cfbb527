"""Spark for lakestream: Java, JARs, a session, and what the jobs share."""
