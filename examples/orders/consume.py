"""Three consumers of the orders: billing takes all, shipping those to France, fraud looks at large ones."""

import asyncio
import json
import os

from lakestream.client import connect


async def left(consumer):
    """Yield the messages that a consumer has left; each is acked once it was processed."""
    while (await consumer.consumer_info()).num_pending:
        for message in await consumer.fetch(25):
            yield message
            await message.ack()


async def billing(js):
    """Sum all orders. The durable consumer continues where it ended, also after a crash: acks say what is done."""
    orders = await js.pull_subscribe("orders.>", durable="billing")
    prices = [json.loads(message.data)["price"] async for message in left(orders)]
    return f"billing   {len(prices)} orders, {sum(prices):.2f} in all"


async def shipping(js):
    """Pack parcels to France; the server filters."""
    orders = await js.pull_subscribe("orders.fr", durable="shipping")
    parcels = [message async for message in left(orders)]
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
