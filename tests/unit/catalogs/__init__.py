"""Unit tests of packages/sharing."""
