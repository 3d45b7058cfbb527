"""Unit tests of lakestream/sharing."""
