"""JetStream's error codes, and errors for clients.

Belongs here: the table of all codes of API level 5 (nats-server 2.15), that of lakestream's own codes, the `error`
object of a response, and the text of any error for clients. A code is raised where its rule is.
"""

from __future__ import annotations

from typing import NamedTuple


class PublicError(Exception):
    """An error with a text for clients.

    Args:
        message: for the server's log.
        for_clients: the same without file names and addresses of the server; "": `message` has none.
    """

    def __init__(self, message: str, for_clients: str = "") -> None:
        super().__init__(message)
        self.for_clients = for_clients or message


class ApiError(PublicError):
    """An error of the JetStream API.

    Args:
        code: the HTTP-like class of the error (400, 404, 500, 503 …).
        err_code: the JetStream error code (10002 to 10228), or one of `OWN_ERRORS`; 0: none.
        description: the text for people.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description
        self.inside = ""
        """nats-server's text in traces, which no client sees; "": the description."""

    def called(self, inside: str) -> ApiError:
        """Set the text in traces; return the error."""
        self.inside = inside
        return self

    def as_dict(self) -> dict[str, int | str]:
        """Return the `error` object of a response; zero and empty fields are left out, as in Go's JSON."""
        shown: dict[str, int | str] = {"code": self.code}
        if self.err_code:
            shown["err_code"] = self.err_code
        if self.description:
            shown["description"] = self.description
        return shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiError) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.code, self.err_code, self.description))

    def __repr__(self) -> str:
        return f"ApiError({self.code}, {self.err_code}, {self.description!r})"


class ErrorKind(NamedTuple):
    """One row of the table: class of error, and description with `{x}` for arguments."""

    code: int
    description: str


def api_error(err_code: int, **fields: object) -> ApiError:
    """Make the error `err_code`, its description filled with `fields`.

    An `err` that is itself an ApiError passes through unchanged: generic codes never hide a more precise one.
    Raises KeyError for an unknown code or a missing field.
    """
    inner = fields.get("err")
    if isinstance(inner, ApiError):
        return inner
    kind = ERRORS[err_code] if err_code < OWN else OWN_ERRORS[err_code]
    return ApiError(
        kind.code, err_code, kind.description.format(**fields) if "{" in kind.description else kind.description
    )


def invalid(text: str) -> ApiError:
    """Return the error of an invalid stream configuration (10052), with the reason."""
    return api_error(10052, err=text)


ERRORS: dict[int, ErrorKind] = {
    10002: ErrorKind(400, "resource limits exceeded for account"),
    10003: ErrorKind(400, "bad request"),
    10004: ErrorKind(503, "incomplete results"),
    10005: ErrorKind(400, "{err}"),
    10006: ErrorKind(500, "JetStream not in clustered mode"),
    10007: ErrorKind(500, "JetStream cluster not assigned to this server"),
    10008: ErrorKind(503, "JetStream system temporarily unavailable"),
    10009: ErrorKind(500, "JetStream cluster can not handle request"),
    10010: ErrorKind(503, "JetStream clustering support required"),
    10011: ErrorKind(400, "tags placement not supported for operation"),
    10012: ErrorKind(500, "{err}"),
    10013: ErrorKind(400, "consumer name already in use"),
    10014: ErrorKind(404, "consumer not found"),
    10015: ErrorKind(400, "deliver subject not valid"),
    10016: ErrorKind(400, "consumer expected to be durable but no durable name set in subject"),
    10017: ErrorKind(400, "consumer name in subject does not match durable name in request"),
    10018: ErrorKind(400, "consumer expected to be durable but a durable name was not set"),
    10019: ErrorKind(400, "consumer expected to be ephemeral but detected a durable name set in subject"),
    10020: ErrorKind(400, "consumer expected to be ephemeral but a durable name was set in request"),
    10021: ErrorKind(400, "stream external api prefix {prefix} must not overlap with {subject}"),
    10022: ErrorKind(400, "stream external delivery prefix {prefix} overlaps with stream subject {subject}"),
    10023: ErrorKind(503, "insufficient resources"),
    10024: ErrorKind(400, "stream external delivery prefix {prefix} must not contain wildcards"),
    10025: ErrorKind(400, "invalid JSON: {err}"),
    10026: ErrorKind(400, "maximum consumers limit reached"),
    10027: ErrorKind(400, "maximum number of streams reached"),
    10028: ErrorKind(500, "insufficient memory resources available"),
    10029: ErrorKind(500, "{err}"),
    10030: ErrorKind(400, "stream mirror must have max message size >= source"),
    10031: ErrorKind(400, "stream mirrors can not also contain other sources"),
    10032: ErrorKind(400, "stream mirrors can not have both start seq and start time configured"),
    10033: ErrorKind(400, "stream mirrors can not contain filtered subjects"),
    10034: ErrorKind(400, "stream mirrors can not contain subjects"),
    10035: ErrorKind(503, "account not found"),
    10036: ErrorKind(503, "not currently supported in clustered mode"),
    10037: ErrorKind(404, "no message found"),
    10038: ErrorKind(400, "expected an empty request payload"),
    10039: ErrorKind(503, "JetStream not enabled for account"),
    10040: ErrorKind(400, "peer not a member"),
    10041: ErrorKind(500, "{err}"),
    10042: ErrorKind(500, "JetStream unable to subscribe to restore snapshot {subject}: {err}"),
    10043: ErrorKind(400, "sequence {seq} not found"),
    10044: ErrorKind(400, "server is not a member of the cluster"),
    10045: ErrorKind(500, "{err}"),
    10046: ErrorKind(400, "stream source must have max message size >= target"),
    10047: ErrorKind(500, "insufficient storage resources available"),
    10048: ErrorKind(500, "{err}"),
    10049: ErrorKind(500, "{err}"),
    10050: ErrorKind(500, "{err}"),
    10051: ErrorKind(500, "{err}"),
    10052: ErrorKind(500, "{err}"),
    10053: ErrorKind(500, "{err}"),
    10054: ErrorKind(400, "message size exceeds maximum allowed"),
    10055: ErrorKind(400, "stream mirror configuration can not be updated"),
    10056: ErrorKind(400, "stream name in subject does not match request"),
    10057: ErrorKind(500, "{err}"),
    10058: ErrorKind(400, "stream name already in use with a different configuration"),
    10059: ErrorKind(404, "stream not found"),
    10060: ErrorKind(400, "expected stream does not match"),
    10061: ErrorKind(400, "Replicas configuration can not be updated"),
    10062: ErrorKind(500, "restore failed: {err}"),
    10063: ErrorKind(503, "expected stream sequence does not match"),
    10064: ErrorKind(500, "snapshot failed: {err}"),
    10065: ErrorKind(400, "subjects overlap with an existing stream"),
    10066: ErrorKind(500, "{err}"),
    10067: ErrorKind(500, "{err}"),
    10068: ErrorKind(404, "template not found"),
    10069: ErrorKind(500, "{err}"),
    10070: ErrorKind(400, "wrong last msg ID: {id}"),
    10071: ErrorKind(400, "wrong last sequence: {seq}"),
    10072: ErrorKind(500, "JetStream unable to open temp storage for restore"),
    10073: ErrorKind(400, "template name in subject does not match request"),
    10074: ErrorKind(500, "replicas > 1 not supported in non-clustered mode"),
    10075: ErrorKind(503, "peer remap failed"),
    10076: ErrorKind(503, "JetStream not enabled"),
    10077: ErrorKind(503, "{err}"),
    10078: ErrorKind(400, "consumer config required"),
    10079: ErrorKind(400, "consumer deliver subject has wildcards"),
    10080: ErrorKind(400, "consumer in push mode can not set max waiting"),
    10081: ErrorKind(400, "consumer deliver subject forms a cycle"),
    10082: ErrorKind(400, "consumer requires ack policy for max ack pending"),
    10083: ErrorKind(400, "consumer idle heartbeat needs to be >= 100ms"),
    10084: ErrorKind(400, "consumer in pull mode requires explicit ack policy on workqueue stream"),
    10085: ErrorKind(400, "consumer in pull mode requires a durable name"),
    10086: ErrorKind(400, "consumer in pull mode can not have rate limit set"),
    10087: ErrorKind(400, "consumer max waiting needs to be positive"),
    10088: ErrorKind(400, "consumer idle heartbeat requires a push based consumer"),
    10089: ErrorKind(400, "consumer flow control requires a push based consumer"),
    10090: ErrorKind(400, "consumer direct requires a push based consumer"),
    10091: ErrorKind(400, "consumer direct requires an ephemeral consumer"),
    10092: ErrorKind(400, "consumer direct on a mapped consumer"),
    10093: ErrorKind(400, "consumer filter subject is not a valid subset of the interest subjects"),
    10094: ErrorKind(400, "{err}"),
    10095: ErrorKind(400, "failed to parse consumer sampling configuration: {err}"),
    10096: ErrorKind(500, "stream not valid"),
    10097: ErrorKind(400, "header size exceeds maximum allowed of 64k"),
    10098: ErrorKind(400, "workqueue stream requires explicit ack"),
    10099: ErrorKind(400, "multiple non-filtered consumers not allowed on workqueue stream"),
    10100: ErrorKind(400, "filtered consumer not unique on workqueue stream"),
    10101: ErrorKind(400, "consumer must be deliver all on workqueue stream"),
    10102: ErrorKind(400, "consumer name is too long, maximum allowed is {max}"),
    10103: ErrorKind(400, "durable name can not contain '.', '*', '>'"),
    10104: ErrorKind(500, "error creating store for consumer: {err}"),
    10105: ErrorKind(400, "consumer already exists and is still active"),
    10106: ErrorKind(400, "consumer replacement durable config not the same"),
    10107: ErrorKind(400, "consumer description is too long, maximum allowed is {max}"),
    10108: ErrorKind(400, "consumer with flow control also needs heartbeats"),
    10109: ErrorKind(400, "invalid operation on sealed stream"),
    10110: ErrorKind(500, "{err}"),
    10111: ErrorKind(500, "{err}"),
    10112: ErrorKind(400, "invalid push consumer deliver subject"),
    10113: ErrorKind(400, "account requires a stream config to have max bytes set"),
    10114: ErrorKind(400, "consumer max request batch needs to be > 0"),
    10115: ErrorKind(400, "consumer max request expires needs to be >= 1ms"),
    10116: ErrorKind(400, "max deliver is required to be > length of backoff values"),
    10117: ErrorKind(500, "subject details would exceed maximum allowed"),
    10118: ErrorKind(500, "stream is offline"),
    10119: ErrorKind(500, "consumer is offline"),
    10120: ErrorKind(400, "no JetStream default or applicable tiered limit present"),
    10121: ErrorKind(400, "consumer max ack pending exceeds system limit of {limit}"),
    10122: ErrorKind(400, "stream max bytes exceeds account limit max stream bytes"),
    10123: ErrorKind(400, "can not move and scale a stream in a single update"),
    10124: ErrorKind(400, "stream move already in progress"),
    10125: ErrorKind(400, "consumer max request batch exceeds server limit of {limit}"),
    10126: ErrorKind(400, "consumer config replica count exceeds parent stream"),
    10127: ErrorKind(400, "Consumer name can not contain path separators"),
    10128: ErrorKind(400, "Stream name can not contain path separators"),
    10129: ErrorKind(400, "stream reconfiguration not in progress"),
    10130: ErrorKind(400, "stream name already in use, cannot restore"),
    10131: ErrorKind(400, "Consumer create request did not match filtered subject from create subject"),
    10132: ErrorKind(400, "Consumer Durable and Name have to be equal if both are provided"),
    10133: ErrorKind(400, "replicas count cannot be negative"),
    10134: ErrorKind(400, "consumer config replicas must match interest retention stream's replicas"),
    10135: ErrorKind(400, "consumer metadata exceeds maximum size of {limit}"),
    10136: ErrorKind(400, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    10137: ErrorKind(400, "consumer with multiple subject filters cannot use subject based API"),
    10138: ErrorKind(400, "consumer subject filters cannot overlap"),
    10139: ErrorKind(400, "consumer filter in FilterSubjects cannot be empty"),
    10140: ErrorKind(400, "duplicate source configuration detected"),
    10141: ErrorKind(400, "sourced stream name is invalid"),
    10142: ErrorKind(400, "mirrored stream name is invalid"),
    10143: ErrorKind(400, "stream mirrors can not have first sequence configured"),
    10144: ErrorKind(400, "source with multiple subject transforms cannot also have a single subject filter"),
    10145: ErrorKind(400, "source transform source: {err}"),
    10146: ErrorKind(400, "source transform: {err}"),
    10147: ErrorKind(400, "source filters can not overlap"),
    10148: ErrorKind(400, "consumer already exists"),
    10149: ErrorKind(400, "consumer does not exist"),
    10150: ErrorKind(400, "mirror with multiple subject transforms cannot also have a single subject filter"),
    10151: ErrorKind(400, "mirror transform source: {err}"),
    10152: ErrorKind(400, "mirror subject filters can not overlap"),
    10153: ErrorKind(400, "consumer inactive threshold exceeds system limit of {limit}"),
    10154: ErrorKind(400, "mirror transform: {err}"),
    10155: ErrorKind(400, "stream transform source: {err}"),
    10156: ErrorKind(400, "stream transform: {err}"),
    10157: ErrorKind(400, "pedantic mode: {err}"),
    10158: ErrorKind(409, "duplicate message id is in process"),
    10159: ErrorKind(400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    10160: ErrorKind(400, "Provided priority group does not exist for this consumer"),
    10161: ErrorKind(400, "Group name cannot be an empty string"),
    10162: ErrorKind(
        400, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"
    ),
    10163: ErrorKind(503, "expected last sequence per subject temporarily unavailable"),
    10164: ErrorKind(400, "wrong last sequence"),
    10165: ErrorKind(400, "invalid per-message TTL"),
    10166: ErrorKind(400, "per-message TTL is disabled"),
    10167: ErrorKind(429, "too many requests"),
    10168: ErrorKind(400, "message counters is disabled"),
    10169: ErrorKind(400, "message counter increment is missing"),
    10170: ErrorKind(400, "message counter has payload"),
    10171: ErrorKind(400, "message counter increment is invalid"),
    10172: ErrorKind(400, "message counter is broken"),
    10173: ErrorKind(400, "stream mirrors can not also calculate counters"),
    10174: ErrorKind(400, "atomic publish is disabled"),
    10175: ErrorKind(400, "atomic publish sequence is missing"),
    10176: ErrorKind(400, "atomic publish batch is incomplete"),
    10177: ErrorKind(400, "atomic publish unsupported header used: {header}"),
    10178: ErrorKind(400, "priority groups can not be used with push consumers"),
    10179: ErrorKind(400, "atomic publish batch ID is invalid"),
    10180: ErrorKind(412, "min last sequence"),
    10181: ErrorKind(400, "consumer ack policy invalid"),
    10182: ErrorKind(400, "consumer replay policy invalid"),
    10183: ErrorKind(400, "consumer ack wait needs to be positive"),
    10184: ErrorKind(400, "consumer backoff needs to be positive"),
    10185: ErrorKind(412, "JetStream minimum api level required"),
    10186: ErrorKind(400, "stream mirrors can not also schedule messages"),
    10187: ErrorKind(400, "stream source can not also schedule messages"),
    10188: ErrorKind(400, "message schedules is disabled"),
    10189: ErrorKind(400, "message schedules pattern is invalid"),
    10190: ErrorKind(400, "message schedules target is invalid"),
    10191: ErrorKind(400, "message schedules invalid per-message TTL"),
    10192: ErrorKind(400, "message schedules invalid rollup"),
    10193: ErrorKind(400, "missing sequence for expected last sequence per subject"),
    10194: ErrorKind(500, "stream is offline: {err}"),
    10195: ErrorKind(500, "consumer is offline: {err}"),
    10196: ErrorKind(400, "consumer can not have priority groups when policy is none"),
    10197: ErrorKind(400, "PinnedTTL cannot be set when PriorityPolicy is none"),
    10198: ErrorKind(400, "stream mirrors can not also use atomic publishing"),
    10199: ErrorKind(400, "atomic publish batch is too large: {size}"),
    10200: ErrorKind(400, "atomic publish batch commit is invalid"),
    10201: ErrorKind(400, "atomic publish batch contains duplicate message id"),
    10202: ErrorKind(400, "cluster member change is in progress"),
    10203: ErrorKind(400, "message schedules source is invalid"),
    10204: ErrorKind(400, "invalid reset: {err}"),
    10205: ErrorKind(400, "batch publish is disabled"),
    10206: ErrorKind(400, "batch publish pattern is invalid"),
    10207: ErrorKind(400, "batch publish ID is invalid"),
    10208: ErrorKind(400, "batch publish ID unknown"),
    10209: ErrorKind(400, "stream mirrors can not also use batch publishing"),
    10210: ErrorKind(429, "atomic publish too many inflight"),
    10211: ErrorKind(429, "batch publish too many inflight"),
    10212: ErrorKind(400, "message schedules invalid scheduler"),
    10213: ErrorKind(400, "stream mirror consumer config is invalid"),
    10214: ErrorKind(400, "stream mirror consumer requires flow control ack policy"),
    10215: ErrorKind(400, "stream source consumer config is invalid"),
    10216: ErrorKind(400, "duplicate stream source consumer detected"),
    10217: ErrorKind(400, "stream source consumer requires flow control ack policy"),
    10218: ErrorKind(400, "flow control ack policy requires a push based consumer"),
    10219: ErrorKind(400, "flow control ack policy requires flow control"),
    10220: ErrorKind(400, "flow control ack policy requires max ack pending"),
    10221: ErrorKind(400, "flow control ack policy requires unset ack wait"),
    10222: ErrorKind(400, "flow control ack policy requires unset max deliver"),
    10223: ErrorKind(400, "message schedules time zone is invalid"),
    10224: ErrorKind(400, "JetStream system rescue not applied: {err}"),
    10225: ErrorKind(400, "consumer's stream identity does not match: {msg}"),
    10226: ErrorKind(400, "stream reconfiguration already in progress"),
    10227: ErrorKind(400, "message stream source header is not allowed"),
    10228: ErrorKind(500, "stream source consumer stalled on flow control"),
}
"""Every code that nats-server 2.15.1 defines, also unused ones."""

OWN = 20000
"""Codes from here on are lakestream's own."""

OWN_ERRORS: dict[int, ErrorKind] = {
    20001: ErrorKind(404, "schema not found: {reference}"),
    20002: ErrorKind(400, "schema not valid: {err}"),
    20003: ErrorKind(409, "schema not compatible: {err}"),
    20004: ErrorKind(409, "schema in use: {err}"),
    20005: ErrorKind(503, "schemas temporarily unavailable: {err}"),
    20006: ErrorKind(400, "message does not fit its schema: {misfit}"),
}
"""Codes that nats-server does not have: of the schema registry, and of publishes that it makes the server refuse."""


def for_clients(error: BaseException | None) -> str:
    """Return the text of an error for clients: never the name of a file or an address of the server's.

    An error that is not known to be free of them is only in the server's log: log it where this is used.
    """
    if isinstance(error, PublicError):
        return error.for_clients
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it failed on the server, whose log says why"
