"""Tests of packages/mqtt without a server."""
