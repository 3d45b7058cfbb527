"""Connections and the routing of messages between them.

Belongs here: client connections, the hub, the interest graph, accounts and their permissions, connections to the other
nodes and to remote servers. Knows no stream: a stream is a subscriber.

In reading order:

- `listener.py`: A listening socket, and the steps from an accepted socket to a connection.
- `proxy.py`: PROXY protocol, versions 1 and 2: the address of a client behind a load balancer.
- `client_hello.py`: The first record of a TLS client, as far as the choice of a certificate's context needs it.
- `tls.py`: TLS contexts, and what they tell of a connection.
- `connection.py`: One client connection.
- `inbox.py`: The input of a client connection.
- `incomplete.py`: Incomplete messages of all client connections.
- `outbox.py`: Output of one turn, and back-pressure.
- `unsent.py`: Unsent bytes of all client connections.
- `turn.py`: The turn of the event loop that all clients of a server share.
- `hub.py`: The hub of an account: routes each published message to the account's subscribers.
- `interest/`: The interest graph: subscriptions by subject.
- `accounts/`: Accounts and users of a running server.
- `identity.py`: Identity of this server.
- `statistics.py`: Counters of a server since its start.
- `tracing.py`: Message tracing: the path of a message, sent to the subject that its publisher or its account named.
- `tracer.py`: Protocol trace in the log (-V), line by line, as nats-server writes it.
- `keep_alive.py`: PINGs of a connection to another server, and the decision that the other side is dead.
- `websocket/`: Clients and leaf nodes over WebSocket.
- `leaf/`: Leaf nodes: the listener for them, and the servers that this one joins as one.
- `remote/`: Connections to servers outside the cluster.
- `peers/`: Connections to the other nodes of the cluster.
- `client_outbox.py`: The output of a client connection.
"""
