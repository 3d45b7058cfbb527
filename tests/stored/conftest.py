"""The Spark that the tests of recorded lakes share with those in tests/lake."""

from tests.lake.conftest import spark as spark
