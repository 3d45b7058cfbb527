from lakestream_client.sync import *  # noqa: F403  # its public names
