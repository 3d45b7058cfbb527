"""The configuration of a server: nats.conf and flags.

Belongs here: the grammar, the options as records, and the checks between them.

In reading order:

- `errors.py`: Errors of a server's start.
- `options.py`: The settings of a server, as records.
- `account_options.py`: Accounts, as records: users and their permissions, limits, exports, imports and mappings.
- `conf.py`: The grammar of nats.conf.
- `values.py`: Converters for values of nats.conf.
- `loading.py`: The options of a server, from its command line and configuration file.
- `settings.py`: The keys of nats.conf and the options that they set.
- `effective.py`: The settings in force, with the place that each comes from.
- `accounts.py`: The `accounts` block of nats.conf, and `mappings`.
- `users.py`: Users and their permissions, in nats.conf.
- `exports.py`: Exports and imports of an account, in nats.conf.
- `sharing.py`: Exports and imports of accounts.
- `mappings.py`: Subject mappings of an account.
- `account_checks.py`: Checks across accounts, and between accounts and other settings.
- `tls.py`: `tls { … }` blocks of nats.conf.
- `cluster.py`: The `cluster` block of nats.conf, and its flags.
- `websocket.py`: The `websocket` block of nats.conf.
- `leafnodes.py`: The `leafnodes` block of nats.conf.
- `remote.py`: The `remote` and `remotes` blocks of nats.conf.
- `callout.py`: The `auth_callout` block of `authorization`, in nats.conf.
- `operators.py`: Operator mode in nats.conf: `operator`, `resolver` and their company.
"""
