"""MQTT 3.1.1 for lakestream, as nats-server serves it.

Belongs here: the protocol without I/O, topics as subjects, sessions in JetStream, and the listener, which a server with
a block `mqtt` opens in its own process. Logins, permissions, accounts and limits are the server's.

In reading order:

- `packets.py`: MQTT 3.1.1 on the wire, without I/O: packets as bytes.
- `topics.py`: Topics of MQTT as subjects of NATS, and back.
- `stored.py`: Streams of an account, their subjects, and the messages in them, all as nats-server has them.
- `window.py`: Packet ids of messages on their way to a client, without I/O.
- `options.py`: The `mqtt` block of nats.conf.
- `requests.py`: Requests to JetStream of one account.
- `sessions.py`: The sessions of an account.
- `connection.py`: One MQTT client, as a connection of the server.
- `listener.py`: The listener for MQTT, and the sessions behind it.
"""
