"""Ask for the balances now and then, and for the history of one of them."""

import os
import time

from lakestream.client.sync import connect


def shown(messages):
    found = sorted((each.subject.removeprefix("balances."), each.data.decode()) for each in messages)
    return ", ".join(f"{account} {balance}" for account, balance in found)


with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    print("now:", shown(client.as_of("BALANCES", time.time_ns()).last()))
    print("after the second booking:", shown(client.as_of("BALANCES", seq=2).last()))
    print("after the fourth booking:", shown(client.as_of("BALANCES", seq=4).last()))
    history = client.history("BALANCES", "balances.alice")
    print("alice:", ", ".join(f"{each.data.decode()} by {each.header('By')}" for each in history))
