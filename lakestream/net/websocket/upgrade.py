"""The records of WebSocket handshakes that succeeded.

Belongs here: what the transport and the connection behind it are told. It imports neither HTTP nor frames: servers
without a `websocket` block load it too.
"""

from __future__ import annotations

import msgspec


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request.

    Attributes:
        answer: the response.
        login: fields for CONNECT from cookies.
        forwarded_for: address of the client by X-Forwarded-For; "": none.
        compressed: permessage-deflate was agreed on.
        masked: the client's frames are masked.
        max_frame: bytes of the largest frame for this client; 0: no limit. Browsers get small ones.
        whole: compressed messages are one frame even so (Safari cannot inflate fragments).
        leaf: it asks for a leaf connection; `mqtt`: it speaks MQTT.
    """

    answer: bytes
    login: dict[str, str]
    forwarded_for: str
    compressed: bool
    masked: bool
    max_frame: int
    whole: bool
    leaf: bool
    mqtt: bool = False


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that accepts the request of this side.

    Attributes:
        compressed: permessage-deflate was agreed on.
        masked: frames of this side must be masked.
        rest: bytes that came behind the answer.
    """

    compressed: bool
    masked: bool
    rest: bytes
