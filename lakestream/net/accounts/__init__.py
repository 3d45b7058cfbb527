"""Accounts and users of a running server.

Belongs here: authentication, permissions, imports and exports, and replies across accounts.

In reading order:

- `accounts.py`: Accounts of a running server.
- `auth.py`: Authentication of clients.
- `permissions.py`: The permissions of one user.
- `guard.py`: The step of a connection's pipeline that applies permissions and subject mappings.
- `certificates.py`: Users of client certificates (`verify_and_map`).
- `callout.py`: Auth callout: a service decides about logins (ADR-26).
- `imports.py`: Imports between the accounts of a server.
- `stream_imports.py`: Messages of other accounts that an account imports.
- `service_imports.py`: Requests to services in other accounts.
- `responses.py`: Reply paths of requests to services in other accounts.
- `service_latency.py`: Latency of requests to services in other accounts.
- `operators.py`: Operators, and what the tokens of their accounts and users allow.
- `signed_accounts.py`: Accounts that operators signed, in a running server.
- `resolver.py`: Resolvers: where the tokens of accounts come from.
- `url_resolver.py`: Tokens of accounts from an HTTP server.
- `directory_resolver.py`: Tokens of accounts in a directory, which servers of a cluster exchange.
- `token_files.py`: A directory of account tokens.
"""
