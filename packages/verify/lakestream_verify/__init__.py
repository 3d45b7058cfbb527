"""Verification and repair of stores: of one that no server uses, or of a running server's streams.

Belongs here: comparing a stream's files with their replay, with the lake, and with its other replicas, and deciding
which findings can be repaired; the commands; and the checks that a server loads with the first request to verify
(lakestream/server/verification.py). The files of a single log are verified in log/.

In reading order:

- `streams.py`: Verification of the files of one stream.
- `recovered.py`: Streams recovered from their files outside a server.
- `lake.py`: Verification of a stream's part of the lake.
- `stores.py`: Verification of a store directory.
- `copies.py`: Comparison of the replicas in several stores that no server uses.
- `repair.py`: Repair of a stream's files where that is safe.
- `digests.py`: Comparison of replicas by digests.
- `running.py`: Verification of this node's replicas while the server runs.
- `verification.py`: Verification of a stream of a running server, by the node that leads it.
- `client.py`: Verification of a running server for `lakestream verify` and `lakestream repair`.
- `verify_command.py`: `lakestream verify`: everything that is wrong with the files of stores, or of running servers,
  and their lake.
- `repair_command.py`: `lakestream repair`: what can be repaired in a store, or in a running cluster, without a loss.
- `log/`: Verification of the files of one log.
- `audit_check.py`: Verification of an audit trail: `lakestream verify URL --audit`.
- `audit_trail.py`: The audit trail of an account: who asked, read and changed what, in a stream of its own.
"""
