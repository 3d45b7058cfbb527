from lakestream_client import *  # noqa: F403  # the names of its __all__
from lakestream_client import sync as sync
