"""Three consumers of the orders: billing takes all, shipping those to France, fraud looks at large ones."""

import asyncio
import json
import os

from nats.errors import TimeoutError as NothingLeft

from lakestream.client import connect


async def billing(js):
    """Sum all orders. The durable consumer continues where it ended, also after a crash: acks say what is done."""
    orders = await js.pull_subscribe("orders.>", durable="billing")
    count = total = 0
    try:
        while True:
            for message in await orders.fetch(25, timeout=1):
                total += json.loads(message.data)["price"]
                count += 1
                await message.ack()
    except NothingLeft:
        return f"billing   {count} orders, {total:.2f} in all"


async def shipping(js):
    """Pack parcels to France; the server filters."""
    orders = await js.pull_subscribe("orders.fr", durable="shipping")
    parcels = await orders.fetch(100, timeout=1)
    for message in parcels:
        await message.ack()
    return f"shipping  {len(parcels)} parcels to fr"


async def fraud(js):
    """Look at every order from the beginning, in order and without acks."""
    orders = await js.subscribe("orders.>", ordered_consumer=True)
    found = [json.loads((await orders.next_msg(timeout=5)).data) for _ in range(60)]
    return f"fraud     {sum(order['price'] > 120 for order in found)} orders above 120.00"


async def main():
    async with await connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
        for line in await asyncio.gather(*[work(client.jetstream) for work in (billing, shipping, fraud)]):
            print(line)


asyncio.run(main())
