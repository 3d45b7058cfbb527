"""The `mqtt` block of nats.conf.

Belongs here: its keys with nats-server's errors, the checks between the block and other settings, and how its clients
log in. The server finds it by the entry point `as_mqtt`, and calls `check` and `logins` of what it returns.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lakestream.config.account_options import User
from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, LeafOptions, Options, TlsOptions
from lakestream.config.tls import as_tls
from lakestream.config.values import (
    Rule,
    address,
    as_boolean,
    as_duration,
    as_number,
    as_text,
    converted,
)
from lakestream.config.websocket import as_login, listener_logins

MAX_ACK_PENDING = 0xFFFF


class MqttOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the listener for MQTT.

    Attributes:
        port: -1: a free one, 0: no listener.
        tls: None: plain text.
        user, token: of MQTT clients, instead of those at the top; `no_auth_user` likewise.
        auth_timeout_ns: 0: as at the top.
        ack_wait_ns: time after which an unacknowledged message is sent again.
        js_api_timeout_ns: time to wait for JetStream.
        max_ack_pending: unacknowledged messages of one subscription.
        js_domain: of the JetStream that has the streams; "": this server's.
        stream_replicas: 0: by the number of routes, at most 3.
        consumer_memory_storage, consumer_inactive_threshold_ns: of consumers; 0: they last.
        reject_qos2_publish: close clients that publish with QoS 2; `downgrade_qos2_subscribe`: grant QoS 1 instead.
    """

    host: str = "0.0.0.0"
    port: int = 0
    tls: TlsOptions | None = None
    user: User | None = None
    token: str = ""
    no_auth_user: str = ""
    auth_timeout_ns: int = 0
    ack_wait_ns: int = 30 * SECOND
    js_api_timeout_ns: int = 5 * SECOND
    max_ack_pending: int = 1024
    js_domain: str = ""
    stream_replicas: int = 0
    consumer_memory_storage: bool = False
    consumer_inactive_threshold_ns: int = 0
    reject_qos2_publish: bool = False
    downgrade_qos2_subscribe: bool = False
    warnings: tuple[str, ...] = ()

    def check(self, options: Options) -> None:
        """Check the block against other settings, in nats-server's order. Raises StartError."""
        if not self.port:
            return
        if not options.server_name and options.cluster.port:
            raise StartError("mqtt requires server name to be explicitly set")
        users = [*options.users, *(user for account in options.accounts for user in account.users)]
        has_users = bool(users) and not options.single_user
        if self.no_auth_user:
            if not has_users:
                raise StartError(f'no_auth_user: "{self.no_auth_user}" present, but users/nkeys are not defined')
            if self.no_auth_user not in {user.name for user in users}:
                raise StartError(
                    f'no_auth_user: "{self.no_auth_user}" not present as user or nkey in authorization block or '
                    "account configuration"
                )
        for given, what in ((self.user, "username"), (self.token, "token")):
            if given and has_users:
                raise StartError(f"mqtt authentication {what} not compatible with presence of users/nkeys")
        for duration_ns, what in ((self.ack_wait_ns, "ack wait"), (self.js_api_timeout_ns, "JS API timeout")):
            if duration_ns < 0:
                raise StartError(f"{what} must be a positive value")
        if options.jetstream is None and not options.cluster.port and options.leafnodes == LeafOptions():
            raise StartError("mqtt requires JetStream to be enabled if running in standalone mode")

    def logins(self, options: Options) -> Options:
        """Return the settings by which MQTT clients log in."""
        return listener_logins(options, self)


def _ack_pending(key: str, item: Item) -> int:
    number = as_number(key, item)
    if not 0 <= number <= MAX_ACK_PENDING:
        raise item.error(f"invalid value {number}, should in [0..{MAX_ACK_PENDING}] range")
    return number or MqttOptions().max_ack_pending


def _consumer_replicas(key: str, item: Item) -> dict[str, Any]:
    text = f'"{key}": consumer replicas setting ignored in this server version'
    return {"warnings": [f"{item.file}:{item.line}:{item.column}: {text}"]}


def _duration(default: int) -> Any:
    return lambda key, item: as_duration(key, item) or default


MQTT_KEYS: dict[str, Rule] = {
    "listen": ("*", address("host", "port")),
    "port": ("port", as_number),
    **dict.fromkeys(("host", "net"), ("host", as_text)),
    "tls": ("tls", as_tls),
    **dict.fromkeys(("authorization", "authentication"), ("*", as_login)),
    "no_auth_user": ("no_auth_user", as_text),
    **dict.fromkeys(("ack_wait", "ackwait"), ("ack_wait_ns", _duration(30 * SECOND))),
    **dict.fromkeys(("js_api_timeout", "api_timeout"), ("js_api_timeout_ns", _duration(5 * SECOND))),
    **dict.fromkeys(("max_ack_pending", "max_pending", "max_inflight"), ("max_ack_pending", _ack_pending)),
    "js_domain": ("js_domain", as_text),
    "stream_replicas": ("stream_replicas", as_number),
    "consumer_replicas": ("*", _consumer_replicas),
    "consumer_memory_storage": ("consumer_memory_storage", as_boolean),
    **dict.fromkeys(
        ("consumer_inactive_threshold", "consumer_auto_cleanup"), ("consumer_inactive_threshold_ns", _duration(0))
    ),
    "reject_qos2_publish": ("reject_qos2_publish", as_boolean),
    "downgrade_qos2_subscribe": ("downgrade_qos2_subscribe", as_boolean),
}


def as_mqtt(key: str, item: Item) -> MqttOptions:
    """Convert the block, a map."""
    assert isinstance(item.value, dict)
    values = converted(item.value, MQTT_KEYS)
    return MqttOptions(**values | {"warnings": tuple(values.get("warnings", ()))})
