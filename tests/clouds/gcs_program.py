"""Server with the APIs of Google Cloud Storage, as far as lakes use them: `python -m tests.clouds.gcs_program`.

Belongs here: objects in memory with generations, and both APIs over them: the XML API (obstore, deltalake) and the JSON
API (Hadoop's client). Every write, copy and deletion checks its generation preconditions under one lock. Requests need
a bearer token, which is not verified. fake-gcs-server 1.54 cannot be used: it has no XML API, and ignores
`ifGenerationMatch` of simple uploads.

It prints its port, where it is also a proxy that answers CONNECT for storage.googleapis.com by TLS, for a client whose
address cannot be set (Hadoop's).

Source: Cloud Storage, "XML API reference", "JSON API reference", "Request preconditions", "Resumable uploads".
"""

from __future__ import annotations

import base64
import email.parser
import email.utils
import json
import re
import ssl
import sys
import threading
import time
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

MAX_LIST = 1000
BATCH = "/batch/storage/v1"


@dataclass
class Blob:
    """An object. `generation` identifies its content; `etag` is the MD5 in hex, as of objects in one part."""

    name: str
    data: bytes
    generation: int
    updated: float
    kind: str

    @property
    def etag(self) -> str:
        """Return the entity tag of the XML API."""
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'


class Refused(Exception):
    """Raised for a request that fails. `code`: of the XML API."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass
class Upload:
    """An upload in parts, or a resumable one."""

    name: str
    match: int | None
    kind: str
    parts: dict[int, bytes] = field(default_factory=dict)


class Bucket:
    """The objects of one bucket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blobs: dict[str, Blob] = {}
        self.uploads: dict[str, Upload] = {}
        self.lock = threading.Lock()
        self._generation = int(time.time() * 1_000_000)

    def get(self, name: str, generation: int | None = None) -> Blob:
        """Return an object. Raise Refused (404) when there is none of this name and generation."""
        found = self.blobs.get(name)
        if found is None or (generation is not None and found.generation != generation):
            raise Refused(404, "NoSuchKey")
        return found

    def put(self, name: str, data: bytes, match: int | None, kind: str = "application/octet-stream") -> Blob:
        """Write an object if its generation is `match` (0: none). Raise Refused (412) otherwise."""
        with self.lock:
            self._check(name, match)
            self._generation += 1
            made = self.blobs[name] = Blob(name, data, self._generation, time.time(), kind)
            return made

    def delete(self, name: str, match: int | None) -> None:
        """Delete an object, under the same condition."""
        with self.lock:
            self.get(name)
            self._check(name, match)
            del self.blobs[name]

    def _check(self, name: str, match: int | None) -> None:
        found = self.blobs.get(name)
        if match is not None and match != (found.generation if found is not None else 0):
            raise Refused(412, "PreconditionFailed")

    def list(self, prefix: str, delimiter: str, after: str, most: int) -> tuple[list[Blob], list[str], str]:
        """Return objects, common prefixes, and the name after which the next page begins ("": none)."""
        found: list[Blob] = []
        prefixes: list[str] = []
        with self.lock:
            names = sorted(name for name in self.blobs if name.startswith(prefix) and name > after)
            last = ""
            for name in names:
                below = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                if below[1]:
                    common = prefix + below[0] + delimiter
                    if common == last or common <= after:
                        continue
                    last = common
                if len(found) + len(prefixes) >= most:
                    return found, prefixes, max([*(each.name for each in found), *(f"{p}\U0010ffff" for p in prefixes)])
                if below[1]:
                    prefixes.append(last)
                else:
                    found.append(self.blobs[name])
        return found, prefixes, ""


@dataclass
class Request:
    """A request, also a part of a batch."""

    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes


@dataclass
class Answer:
    """An answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}Z"


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _range(request: Request, blob: Blob) -> tuple[int, bytes, dict[str, str]]:
    """Return status, content and headers of a read, of a part of it if the request has a range."""
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range") or "")
    size = len(blob.data)
    if asked is None or not size:
        return 200, blob.data, {}
    if asked[1]:
        first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
    else:
        first, last = max(0, size - int(asked[2])), size - 1
    if first >= size:
        raise Refused(416, "InvalidRange")
    return 206, blob.data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{size}"}


class Xml:
    """The XML API."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        bucket, _, name = unquote(request.path.lstrip("/")).partition("/")
        if bucket != self._bucket.name:
            raise Refused(404, "NoSuchBucket")
        if not name:
            return self._list(request)
        match = _number(request.headers.get("x-goog-if-generation-match"))
        if request.method in ("GET", "HEAD"):
            blob = self._bucket.get(name, _number(request.query.get("generation")))
            status, content, headers = _range(request, blob)
            return Answer(status, content, headers | self._facts(blob))
        if request.method == "DELETE":
            if "uploadId" in request.query:
                self._bucket.uploads.pop(request.query["uploadId"], None)
            else:
                self._bucket.delete(name, match)
            return Answer(204)
        if request.method == "POST":
            return self._in_parts(request, name)
        if "uploadId" in request.query:
            upload = self._bucket.uploads[request.query["uploadId"]]
            upload.parts[int(request.query["partNumber"])] = request.body
            return Answer(headers={"ETag": f'"{md5(request.body, usedforsecurity=False).hexdigest()}"'})
        data, kind = request.body, request.headers.get("Content-Type", "")
        if source := request.headers.get("x-goog-copy-source"):
            data = self._bucket.get(unquote(source).partition("/")[2]).data
        return Answer(headers=self._facts(self._bucket.put(name, data, match, kind)))

    def _facts(self, blob: Blob) -> dict[str, str]:
        return {
            "ETag": blob.etag,
            "x-goog-generation": str(blob.generation),
            "Last-Modified": email.utils.formatdate(blob.updated, usegmt=True),
            "Content-Type": blob.kind or "application/octet-stream",
        }

    def _in_parts(self, request: Request, name: str) -> Answer:
        if "uploads" in request.query:
            upload_id = str(len(self._bucket.uploads) + 1)
            self._bucket.uploads[upload_id] = Upload(name, None, request.headers.get("Content-Type", ""))
            said = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            return Answer(body=said.encode())
        upload = self._bucket.uploads.pop(request.query["uploadId"])
        made = self._bucket.put(name, b"".join(data for _, data in sorted(upload.parts.items())), None, upload.kind)
        said = f"<CompleteMultipartUploadResult><ETag>{escape(made.etag)}</ETag></CompleteMultipartUploadResult>"
        return Answer(body=said.encode(), headers=self._facts(made))

    def _list(self, request: Request) -> Answer:
        query = request.query
        most = min(int(query.get("max-keys", MAX_LIST)), MAX_LIST)
        after = unquote(query["continuation-token"]) if "continuation-token" in query else query.get("start-after", "")
        blobs, prefixes, then = self._bucket.list(query.get("prefix", ""), query.get("delimiter", ""), after, most)
        lines = [
            f"<Contents><Key>{escape(each.name)}</Key><Size>{len(each.data)}</Size><ETag>{escape(each.etag)}</ETag>"
            f"<Generation>{each.generation}</Generation>"
            f"<LastModified>{_time(each.updated)}</LastModified></Contents>"
            for each in blobs
        ]
        lines += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes]
        token = f"<NextContinuationToken>{quote(then)}</NextContinuationToken>" if then else ""
        head = f"<IsTruncated>{str(bool(then)).lower()}</IsTruncated>{token}"
        return Answer(body=f"<ListBucketResult>{head}{''.join(lines)}</ListBucketResult>".encode())


class Json:
    """The JSON API."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        if request.path == BATCH:
            return self._batch(request)
        if request.path.startswith("/upload/"):
            return self._upload(request)
        found = re.fullmatch(r"/(?:download/)?storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(?:/(.+))?)?)?", request.path)
        if found is None:
            raise Refused(400, f"unknown path {request.path}")
        if unquote(found[1]) != self._bucket.name:
            raise Refused(404, "notFound")
        if found[2] is None:
            return self._list(request) if request.path.endswith("/o") else self._about_bucket()
        name, action = unquote(found[2]), found[3] or ""
        match = _number(request.query.get("ifGenerationMatch"))
        if action:
            return self._copy(request, name, action)
        if request.method == "DELETE":
            self._bucket.delete(name, match)
            return Answer(204)
        blob = self._bucket.get(name, _number(request.query.get("generation")))
        if request.query.get("alt") == "media" or request.path.startswith("/download/"):
            status, content, headers = _range(request, blob)
            digest = f"md5={self._facts(blob)['md5Hash']}"
            more = {"x-goog-generation": str(blob.generation), "x-goog-hash": digest, "ETag": blob.etag}
            more["x-goog-stored-content-length"] = str(len(blob.data))
            return Answer(status, content, headers | more | {"Content-Type": blob.kind})
        return self._said(self._facts(blob))

    def _said(self, what: Any, status: int = 200) -> Answer:
        return Answer(status, json.dumps(what).encode(), {"Content-Type": "application/json"})

    def _facts(self, blob: Blob) -> dict[str, Any]:
        when = _time(blob.updated)
        return {
            "kind": "storage#object",
            "bucket": self._bucket.name,
            "name": blob.name,
            "id": f"{self._bucket.name}/{blob.name}/{blob.generation}",
            "size": str(len(blob.data)),
            "generation": str(blob.generation),
            "metageneration": "1",
            "contentType": blob.kind,
            "timeCreated": when,
            "updated": when,
            "md5Hash": base64.b64encode(md5(blob.data, usedforsecurity=False).digest()).decode(),
            "etag": base64.b64encode(str(blob.generation).encode()).decode(),
        }

    def _about_bucket(self) -> Answer:
        made = "2026-01-01T00:00:00.000Z"
        return self._said({"kind": "storage#bucket", "name": self._bucket.name, "timeCreated": made, "updated": made,
                           "location": "EU", "storageClass": "STANDARD", "metageneration": "1"})  # fmt: skip

    def _list(self, request: Request) -> Answer:
        query = request.query
        most = min(int(query.get("maxResults", MAX_LIST)), MAX_LIST)
        delimiter, prefix = query.get("delimiter", ""), query.get("prefix", "")
        blobs, prefixes, then = self._bucket.list(prefix, delimiter, unquote(query.get("pageToken", "")), most)
        if query.get("includeTrailingDelimiter") == "true":
            blobs = blobs + [self._bucket.blobs[each] for each in prefixes if each in self._bucket.blobs]
        said: dict[str, Any] = {"kind": "storage#objects", "items": [self._facts(each) for each in blobs]}
        said |= {"prefixes": prefixes} if prefixes else {}
        return self._said(said | ({"nextPageToken": quote(then)} if then else {}))

    def _copy(self, request: Request, name: str, action: str) -> Answer:
        match = _number(request.query.get("ifGenerationMatch"))
        if action == "compose":
            asked = json.loads(request.body)
            data = b"".join(self._bucket.get(each["name"]).data for each in asked["sourceObjects"])
            return self._said(self._facts(self._bucket.put(name, data, match)))
        found = re.fullmatch(r"(rewriteTo|copyTo|moveTo)/(?:b/[^/]+/)?o/(.+)", action)
        if found is None:
            raise Refused(400, f"unknown action {action}")
        source = self._bucket.get(name, _number(request.query.get("sourceGeneration")))
        made = self._facts(self._bucket.put(unquote(found[2]), source.data, match, source.kind))
        if found[1] == "moveTo":
            self._bucket.delete(name, None)
        if found[1] != "rewriteTo":
            return self._said(made)
        size = made["size"]
        return self._said({"kind": "storage#rewriteResponse", "done": True, "objectSize": size,
                           "totalBytesRewritten": size, "resource": made})  # fmt: skip

    def _upload(self, request: Request) -> Answer:
        query = request.query
        if request.method == "PUT":
            return self._chunk(request, self._bucket.uploads[query["upload_id"]])
        match, kind = _number(query.get("ifGenerationMatch")), request.headers.get("Content-Type", "")
        if query["uploadType"] == "media":
            return self._said(self._facts(self._bucket.put(query["name"], request.body, match, kind)))
        if query["uploadType"] == "multipart":
            about, content = _parts(kind, request.body)
            named = json.loads(about.get_payload())
            data = content.get_payload(decode=True)
            made = self._bucket.put(named["name"], data, match, named.get("contentType", ""))
            return self._said(self._facts(made))
        about = json.loads(request.body or b"{}")
        upload_id = f"r{len(self._bucket.uploads) + 1}"
        name = query.get("name") or about["name"]
        self._bucket.uploads[upload_id] = Upload(name, match, about.get("contentType", ""))
        path = f"/upload/storage/v1/b/{self._bucket.name}/o?uploadType=resumable&upload_id={upload_id}"
        return Answer(headers={"Location": f"https://{request.headers['Host']}{path}"})

    def _chunk(self, request: Request, upload: Upload) -> Answer:
        """Take a part of a resumable upload. The precondition is checked when the object is made, at the end."""
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("Content-Range") or "")
        have = b"".join(upload.parts.values())
        if found is None:
            have = request.body
        elif found[1]:
            have = have[: int(found[1])] + request.body
        upload.parts = {1: have}
        if found is not None and (found[3] == "*" or int(found[3]) != len(have)):
            return Answer(308, headers={"Range": f"bytes=0-{len(have) - 1}"} if have else {})
        return self._said(self._facts(self._bucket.put(upload.name, have, upload.match, upload.kind)))

    def _batch(self, request: Request) -> Answer:
        said = []
        for number, part in enumerate(_parts(request.headers["Content-Type"], request.body)):
            text = part.get_payload(decode=True).decode()
            head, _, body = text.replace("\r\n", "\n").partition("\n\n")
            line, _, fields = head.partition("\n")
            method, target, *_ = line.split(" ")
            inner = _request(method, target, email.parser.HeaderParser().parsestr(fields), body.encode())
            answer = answered(self, inner, is_json=True)
            headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            identifier = part["Content-ID"] or f"<{number}>"
            said.append(
                f"--batch\r\nContent-Type: application/http\r\nContent-ID: <response-{identifier.strip('<>')}>\r\n\r\n"
                f"HTTP/1.1 {answer.status} X\r\n{headers}Content-Length: {len(answer.body)}\r\n\r\n"
                f"{answer.body.decode()}\r\n"
            )
        body = ("".join(said) + "--batch--\r\n").encode()
        return Answer(body=body, headers={"Content-Type": "multipart/mixed; boundary=batch"})


def _parts(kind: str, body: bytes) -> list[Any]:
    """Return the parts of a MIME message."""
    message = email.parser.BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    payload: Any = message.get_payload()
    return list(payload)


def _request(method: str, target: str, headers: Any, body: bytes) -> Request:
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    return Request(method, parts.path, query, headers, body)


def answered(api: Xml | Json, request: Request, *, is_json: bool) -> Answer:
    """Answer a request, also one that fails."""
    try:
        # A batch has no token of its own; each of its parts has one.
        if request.path != BATCH and not (request.headers.get("Authorization") or "").startswith("Bearer "):
            raise Refused(401, "AuthenticationRequired")
        return api.answer(request)
    except Refused as error:
        if is_json:
            reasons = [{"domain": "global", "reason": error.code, "message": error.code}]
            about = {"error": {"code": error.status, "message": error.code, "errors": reasons}}
            return Answer(error.status, json.dumps(about).encode(), {"Content-Type": "application/json"})
        said = f'<?xml version="1.0"?><Error><Code>{error.code}</Code><Message>{escape(request.path)}</Message></Error>'
        return Answer(error.status, said.encode(), {"Content-Type": "application/xml"})


class Handler(BaseHTTPRequestHandler):
    """Connections of clients."""

    protocol_version = "HTTP/1.1"
    bucket: Bucket
    tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        """Be storage.googleapis.com."""
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        with self.tls.wrap_socket(self.connection, server_side=True) as inner:
            Handler(inner, self.client_address, self.server)
        self.close_connection = True

    def _answer(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        request = _request(self.command, self.path, self.headers, body)
        if request.path == "/token":
            said = {"access_token": "ya29.for-tests", "expires_in": 3600, "token_type": "Bearer"}
            self._send(Answer(200, json.dumps(said).encode(), {"Content-Type": "application/json"}))
            return
        is_json = request.path.startswith(("/storage/v1/", "/upload/", "/batch/", "/download/"))
        self._send(answered(Json(self.bucket) if is_json else Xml(self.bucket), request, is_json=is_json))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until the input ends. Arguments: the bucket, and a PEM file with key and certificate."""
    Handler.bucket = Bucket(sys.argv[1])
    Handler.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    Handler.tls.load_cert_chain(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
