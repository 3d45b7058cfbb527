"""Unit tests of packages/registry."""
