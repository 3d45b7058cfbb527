"""The keys of nats.conf that nats-server 2.15.3 knows, by the block in which they stand.

Belongs here: the list that tests compare with the keys of this server. `test_known_keys.py` of the conformance tests
compares it with nats-server.
"""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """A place for keys: a configuration with `%s` where a key and its value go, and the keys known there."""

    text: str
    keys: tuple[str, ...]


def _level(text: str, keys: str) -> Level:
    return Level(text, tuple(keys.split()))


TLS = """
    cert_file key_file ca_file verify verify_and_map verify_cert_and_check_known_urls cipher_suites
    curve_preferences timeout connection_rate_limit pinned_certs insecure allow_insecure_cipher_suites
    handshake_first first immediate min_version certs certificates ocsp_peer cert_store cert_match
    cert_match_by ca_certs_match cert_match_skip_invalid
"""
LEVELS: dict[str, Level] = {
    "top": _level(
        "%s",
        """
        listen client_advertise port server_name host net debug trace trace_verbose trace_headers logtime
        logtime_utc mappings maps disable_sublist_cache accounts default_js_domain authorization http https
        http_port monitor_port https_port http_base_path cluster gateway leaf leafnodes store_dir storedir
        jetstream logfile log_file logfile_size_limit log_size_limit logfile_max_num log_max_num syslog
        remote_syslog pidfile pid_file ports_file_dir prof_port max_control_line max_payload max_pending
        max_connections max_conn max_traced_msg_len max_subscriptions max_subs max_sub_tokens
        max_subscription_tokens ping_interval ping_max tls allow_non_tls write_deadline write_timeout
        lame_duck_duration lame_duck_grace_period operator operators roots root root_operators root_operator
        resolver resolver_preload resolver_pinned_accounts no_system_account no_system no_sys_acc
        no_header_support no_auth_user system_account system trusted trusted_keys connect_error_reports
        reconnect_error_reports websocket mqtt server_tags server_metadata default_sentinel max_closed_clients
        ocsp ocsp_cache no_fast_producer_stall proxy_protocol proxies feature_flags resolver_tls
        prof_block_rate account_resolver ws
        """,
    ),
    "authorization": _level(
        "authorization { %s }",
        """
        user username pass password token timeout users default_permission default_permissions permissions
        auth_callout auth_hook proxy_required
        """,
    ),
    "user": _level(
        "authorization { users: [{ %s }] }",
        """
        user username pass password nkey permission permissions authorization allowed_connection_types
        connection_types clients proxy_required
        """,
    ),
    "permissions": _level(
        "authorization { users: [{user: a, password: b, permissions { %s } }] }",
        "pub publish import sub subscribe export publish_allow_responses allow_responses",
    ),
    "responses": _level(
        "authorization { users: [{user: a, password: b, permissions { allow_responses { %s } } }] }",
        "max max_msgs max_messages max_responses expires expiration ttl",
    ),
    "auth_callout": _level(
        "authorization { auth_callout { %s } }", "issuer auth_users account xkey key allowed_accounts users"
    ),
    "account": _level(
        "accounts { A { %s } }",
        """
        nkey imports exports jetstream users default_permissions mappings maps limits msg_trace trace_dest
        """,
    ),
    "account_jetstream": _level(
        "accounts { A { jetstream { %s } } }",
        """
        max_memory max_mem mem memory max_store max_file max_disk store disk max_streams streams max_consumers
        consumers max_bytes_required max_stream_bytes max_bytes memory_max_stream_bytes mem_max_stream_bytes
        disk_max_stream_bytes store_max_stream_bytes max_ack_pending cluster_traffic
        """,
    ),
    "account_limits": _level(
        "accounts { A { limits { %s } } }",
        """
        max_connections max_conn max_subscriptions max_subs max_payload max_pay max_leafnodes max_leafs
        """,
    ),
    "export": _level(
        "accounts { A { exports: [{ %s }] } }",
        """
        stream service response response_type threshold response_threshold response_max_time response_time
        accounts account_token_position latency allow_trace
        """,
    ),
    "latency": _level("accounts { A { exports: [{ service: x, latency { %s } }] } }", "sampling subject"),
    "import": _level("accounts { A { imports: [{ %s }] } }", "stream service to prefix share allow_trace"),
    "mapping": _level("mappings { a: [{ %s }] }", "dest destination weight cluster"),
    "cluster": _level(
        "cluster { %s }",
        """
        name listen port host net authorization routes tls cluster_advertise advertise no_advertise
        connect_retries connect_backoff permissions pool_size accounts compression ping_interval ping_max
        write_deadline write_timeout
        """,
    ),
    "cluster_authorization": _level(
        "cluster { authorization { %s } }",
        "user username pass password timeout users token permissions default_permissions auth_callout",
    ),
    "tls": _level("tls { %s }", TLS),
    "cluster_tls": _level("cluster { tls { %s } }", TLS),
    "leafnodes_tls": _level("leafnodes { tls { %s } }", TLS),
    "remote_tls": _level("leafnodes { remotes: [{ tls { %s } }] }", TLS),
    "jetstream": _level(
        "jetstream { %s }",
        """
        strict enabled enable store_dir storedir store max_memory_store max_mem_store max_mem max_file_store
        max_file domain cipher key ek encryption_key prev_key prev_ek prev_encryption_key extension_hint
        limits tpm unique_tag max_outstanding_catchup max_buffered_size max_buffered_msgs request_queue_limit
        info_queue_limit sync sync_interval meta_compact meta_compact_size meta_compact_sync max_concurrent_io
        """,
    ),
    "jetstream_limits": _level(
        "jetstream { limits { %s } }",
        "max_ack_pending max_ha_assets max_request_batch duplicate_window batch default_max_consumers",
    ),
    "batch": _level(
        "jetstream { limits { batch { %s } } }", "max_inflight_per_stream max_inflight_total max_msgs timeout"
    ),
    "tpm": _level("jetstream { tpm { %s } }", "keys_file encryption_password srk_password pcr cipher"),
    "websocket": _level(
        "websocket { %s }",
        """
        port host net advertise listen no_tls tls same_origin allow_origin allowed_origins allow_origins
        origins handshake_timeout compress compression authorization authentication no_auth_user jwt_cookie
        user_cookie pass_cookie token_cookie ping_interval headers
        """,
    ),
    "websocket_authorization": _level(
        "websocket { authorization { %s } }", "user username pass password token timeout"
    ),
    "leafnodes": _level(
        "leafnodes { %s }",
        """
        listen port host net authorization remotes reconnect reconnect_delay reconnect_interval tls
        leafnode_advertise advertise no_advertise min_version compression isolate_leafnode_interest isolate
        write_deadline write_timeout ping_interval ping_max
        """,
    ),
    "leafnodes_authorization": _level(
        "leafnodes { authorization { %s } }", "user username pass password account timeout users nkey proxy_required"
    ),
    "remote": _level(
        "leafnodes { remotes: [{ %s }] }",
        """
        no_randomize dont_randomize url urls account local creds credentials nkey seed tls hub deny_import
        deny_imports deny_export deny_exports ws_compress ws_compression websocket_compress
        websocket_compression ws_no_masking websocket_no_masking jetstream_cluster_migrate js_cluster_migrate
        compression first_info_timeout isolate_leafnode_interest isolate disabled proxy request_isolation
        ignore_discovered_servers
        """,
    ),
    "gateway": _level(
        "gateway { %s }",
        """
        name listen port host net authorization tls advertise connect_retries connect_backoff gateways
        reject_unknown reject_unknown_cluster write_deadline write_timeout ping_interval ping_max
        """,
    ),
    "gateways": _level("gateway { gateways: [{ %s }] }", "name tls url urls"),
    "mqtt": _level(
        "mqtt { %s }",
        """
        listen port host net tls authorization authentication no_auth_user ack_wait js_api_timeout api_timeout
        max_ack_pending stream_replicas consumer_replicas consumer_memory_storage consumer_inactive_threshold
        consumer_auto_cleanup reject_qos2_publish downgrade_qos2_subscribe
        """,
    ),
    "resolver": _level("resolver { %s }", "dir type hard_delete interval limit timeout allow_delete ttl"),
}

LATER = {"leafnodes": {"ping_interval", "ping_max"}, "gateway": {"ping_interval", "ping_max"}}
"""Those of them that 2.15.1 does not know."""

PAIRS = [(name, key) for name, level in LEVELS.items() for key in level.keys]
