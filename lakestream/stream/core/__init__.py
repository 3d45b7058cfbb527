"""The core of a stream: configuration, decision, proposal, application.

Belongs here: the steps that every message takes, whatever features the stream uses.

In reading order:

- `config.py`: A stream's configuration: its fields as they are on the wire.
- `operations.py`: Stream operations as log entries.
- `effect.py`: Effects: what a stored message does beyond being stored.
- `batch.py`: Messages on their way into the log.
- `state.py`: Records of a stream beside its messages.
- `publish.py`: Rules that a message has to pass before it is proposed.
- `feature.py`: The interface between the core of a stream and its features.
- `pipeline.py`: Proposals of one stream on their way into its log.
- `view.py`: A stream as the next publish will find it.
- `proposer.py`: Proposer: from a publish to an entry that waits for the log.
- `limits.py`: Limits: the messages that a stream removes, and those that it refuses, because of its size.
- `applier.py`: Applier: what committed entries do to a stream.
- `confirming.py`: Answers that depend on the current state of a stream.
- `stream.py`: The core of a stream: from a published message to its ack, and every change of its state.
- `reader.py`: Reading a stream, wherever its messages lie.
- `events.py`: Advisories about streams and the API as a whole.
- `identity.py`: The identity of a stream, by which mirrors and sources notice that it was made anew.
- `account_limits.py`: Limits of one account on reserved and stored bytes.
- `storage_use.py`: Sums of the bytes that streams hold: those of the server, and those of each account.
- `offline.py`: Streams that need a newer server.
"""
