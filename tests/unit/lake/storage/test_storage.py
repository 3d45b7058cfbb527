"""Tests of `lakestream.lake.storage.storage`: a directory and an object store fulfil one contract."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from lakestream.lake.errors import LeaseLost, StorageFailed, UnsupportedLake
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.clouds.azure import Azure
from lakestream.lake.storage.clouds.cloud import Cloud
from lakestream.lake.storage.clouds.gcs import Gcs
from lakestream.lake.storage.clouds.known import CLOUDS as CLOUDS_KNOWN
from lakestream.lake.storage.clouds.s3 import S3
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, Lease, held, lease_seconds, table_lock
from lakestream.lake.storage.object_storage import describe
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import locate
from tests.s3_proxy import EXPIRED, THROTTLED, Fault, Proxy
from tests.s3_server import S3Server
from tests.store_server import StoreServer

CLOUDS = ["s3_server", "gcs_server", pytest.param("azure_server", marks=pytest.mark.heavy)]
"""Fixtures of object stores. The one of Azure is an npm package of some size."""


@pytest.fixture(params=["directory", *CLOUDS])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "directory":
        (root := tmp_path / "lake of $X #1").mkdir()
        return open_storage(root)
    server: StoreServer = request.getfixturevalue(request.param)
    server.enter(monkeypatch)
    return open_storage(server.url(tmp_path.name))


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    s3_server.enter(monkeypatch)
    return open_storage(s3_server.url(tmp_path.name))


def test_what_is_written_is_read_and_listed(storage: Storage) -> None:
    root = storage.root
    assert storage.list(f"{root}/a") == []
    assert storage.directories(f"{root}/a") == []
    assert storage.tree(f"{root}/a") == []
    assert storage.names(f"{root}/a") == []
    assert storage.stat(f"{root}/a/x") is None
    with pytest.raises(FileNotFoundError):
        storage.read(f"{root}/a/x")
    for name in ("a/x", "a/b/y", "a/Grün~20$", "a.b/z"):
        storage.write(f"{root}/{name}", name.encode())
    assert [entry.name for entry in storage.list(f"{root}/a")] == ["Grün~20$", "x"]
    assert storage.directories(root) == ["a", "a.b"]
    assert [entry.path for entry in storage.tree(f"{root}/a")] == [f"{root}/a/{n}" for n in ("Grün~20$", "b/y", "x")]
    assert storage.read(f"{root}/a/Grün~20$") == "a/Grün~20$".encode()
    content, entry = storage.read_entry(f"{root}/a/x")
    assert (content, entry) == (b"a/x", storage.stat(f"{root}/a/x"))
    assert entry.size == 3
    storage.write(f"{root}/a/x", b"more")
    after = storage.stat(f"{root}/a/x")
    assert after is not None
    assert (after.size, after.tag != entry.tag) == (4, True)
    assert storage.read_end(f"{root}/a/x", 2) == (b"re", 4)
    assert storage.read_end(f"{root}/a/x", 9) == (b"more", 4)


def test_deleting(storage: Storage) -> None:
    root = storage.root
    storage.delete(f"{root}/nothing")
    storage.delete_tree(f"{root}/nothing")
    for number in range(12):
        storage.write(f"{root}/a/{number % 3}/{number}", b"")
    storage.delete(f"{root}/a/0/0")
    storage.delete_all([f"{root}/a/1/1", f"{root}/a/1/4"])
    assert len(storage.tree(f"{root}/a")) == 9
    storage.delete_tree(f"{root}/a/2")
    assert len(storage.tree(root)) == 5
    assert storage.exists(f"{root}/a/0/3")
    assert not storage.exists(f"{root}/a/2/2")


def test_of_concurrent_creates_of_a_file_one_succeeds(storage: Storage) -> None:
    path = f"{storage.root}/one"
    won: list[int] = []
    gate = threading.Barrier(8)

    def create(number: int) -> None:
        gate.wait()
        if storage.create(path, b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.read(path) == b"%d" % won[0]
    assert len(won) == 1


def test_swap_replaces_only_what_it_has_seen(storage: Storage) -> None:
    path = f"{storage.root}/one"
    assert storage.swap(path, b"0", "never") is None
    first = storage.swap(path, b"1", None)
    assert first is not None
    assert storage.swap(path, b"2", None) is None
    second = storage.swap(path, b"3", first)
    assert second not in (None, first)
    assert storage.swap(path, b"4", first) is None
    assert storage.read(path) == b"3"


@pytest.mark.parametrize("size", [1000, 70 * 1024 * 1024], ids=["small", "in parts"])
def test_a_file_is_put_once(storage: Storage, tmp_path: Path, size: int) -> None:
    path, mine, other = f"{storage.root}/a/file", tmp_path / "mine", tmp_path / "other"
    mine.write_bytes(os.urandom(1000) + bytes(size - 1000))
    other.write_bytes(os.urandom(size))
    assert storage.put_file(path, mine)
    assert not storage.put_file(path, mine)
    with pytest.raises(FileExistsError):
        storage.put_file(path, other)
    with storage.fetch(path) as there:
        assert Path(there).read_bytes() == mine.read_bytes()
    assert os.path.exists(there) is storage.local
    with pytest.raises(FileNotFoundError):
        storage.put_file(f"{storage.root}/b", tmp_path / "nothing")


def test_addresses() -> None:
    assert paths.root("s3a://bucket/a/b/") == "s3://bucket/a/b"
    assert open_storage("S3://bucket").spark_path("s3://bucket/streams/A") == "s3a://bucket/streams/A"
    assert paths.root("file:///x%20y/z") == "/x y/z"
    for wrong in (
        "ftp://b/x",
        "s3://",
        "s3:///x",
        "s3://b/a b",
        "s3://b/../x",
        "s3://b//x",
        "s3://b/%41",
        "s3://b?x=1",
    ):
        with pytest.raises(UnsupportedLake):
            open_storage(wrong)
    with pytest.raises(UnsupportedLake, match="directory"):
        paths.local_root("s3://bucket/lake")


def test_each_cloud_has_one_canonical_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT", raising=False)
    assert paths.root("GCS://bucket/a/") == "gs://bucket/a"
    whole = "abfss://box@account1.dfs.core.windows.net/a"
    assert paths.root(whole) == paths.root("abfs://box@account1.blob.core.windows.net/a/") == whole
    assert open_storage(whole).spark_path(f"{whole}/streams/A") == f"{whole}/streams/A"
    assert paths.is_plain(whole)
    with pytest.raises(UnsupportedLake, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        paths.root("az://box/a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account1")
    assert paths.root("az://box/a") == whole
    for wrong in ("abfss://box@account1/a", "abfss://BOX@account1.dfs.core.windows.net/a", "az://b_x/a", "gs://b/a b"):
        with pytest.raises(UnsupportedLake):
            paths.root(wrong)
    assert locate("gs://b/t", "gs://b/t/a%20b") == "gs://b/t/a b"
    assert locate(whole, f"{whole}/part.parquet".replace("abfss", "abfs")) == f"{whole}/part.parquet"


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:hunter2@bucket/lake",
        "https://key:hunter2@host/x",
        "gs://key:hunter2@bucket/lake",
        "az://key:hunter2@box/lake",
        "abfss://key:hunter2@box/lake",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UnsupportedLake, match="environment") as caught:
        open_storage(address)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UnsupportedLake) as caught:
        paths.local_root(address)
    assert "hunter2" not in str(caught.value)


def test_errors_do_not_contain_the_answers_text(bucket: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageFailed, match="NoSuchBucket") as caught:
        open_storage("s3://nothing").write("s3://nothing/x", b"")
    assert caught.value.__context__ is None
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageFailed, match="AWS_ALLOW_HTTP"):
        bucket.read(f"{bucket.root}/x")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:1")
    with pytest.raises(StorageFailed, match="no connection"):
        bucket.read(f"{bucket.root}/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:hunter2@localhost:1")
    with pytest.raises(UnsupportedLake) as refused:
        bucket.read(f"{bucket.root}/x")
    assert "hunter2" not in str(refused.value)


def test_a_refusal_names_its_code_only() -> None:
    answer = (
        "Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>"
        "<AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256</StringToSign></Error>"
    )
    said = describe(Exception(answer), S3())
    assert said.startswith("403 Forbidden SignatureDoesNotMatch")
    assert "AKIAEXAMPLE" not in said
    assert "HMAC" not in said


ANSWERS = {
    "403 Forbidden AccessDenied": (
        "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>"
    ),
    "403 Forbidden AuthenticationFailed": (
        "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AuthenticationFailed</Code><Message>"
        "The MAC signature hunter2 is not the same</Message></Error>"
    ),
    "401 Unauthorized": "Server returned non-2xx status code: 401 Unauthorized: {'token': 'hunter2'}",
    "429 Too Many Requests": "Server returned non-2xx status code: 429 Too Many Requests: hunter2",
    "503 Service Unavailable ServerBusy": (
        "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>ServerBusy</Code></Error>"
    ),
}


@pytest.mark.parametrize("cloud", CLOUDS_KNOWN, ids=lambda cloud: cloud.name)
@pytest.mark.parametrize("meant", ANSWERS)
def test_refusals_of_every_cloud_are_explained(cloud: Cloud, meant: str) -> None:
    said = describe(Exception(ANSWERS[meant]), cloud)
    assert said.startswith(meant)
    assert ("do the credentials" in said) is (meant[:2] == "40")
    assert cloud.credentials in said or meant[:2] != "40"
    assert "hunter2" not in said
    nothing = describe(Exception("error sending request for url (http://169.254.169.254/latest?token=hunter2)"), cloud)
    assert nothing == f"no credentials: {cloud.credentials}"


@pytest.mark.parametrize("fixture", CLOUDS)
def test_stores_refuse_as_expected(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: StoreServer = request.getfixturevalue(fixture)
    server.enter(monkeypatch)
    elsewhere = open_storage(server.url("x").replace("lakes", "nothing", 1))
    with pytest.raises(StorageFailed, match=r"404|NoSuchBucket|ContainerNotFound"):
        elsewhere.write(f"{elsewhere.root}/x", b"")
    proxy = Proxy(server.endpoint)
    proxy.start()
    try:
        for name, value in server.through(proxy.url).items():
            monkeypatch.setenv(name, value)
        there = open_storage(server.url("x"), brief=True)
        there.write(f"{there.root}/x", b"")
        for fault, text in ((EXPIRED, "403 Forbidden ExpiredToken: do the credentials"), (THROTTLED, "503")):
            proxy.fail(fault)
            with pytest.raises(StorageFailed, match=text):
                there.read(f"{there.root}/x")
        proxy.refuse()
        with pytest.raises(StorageFailed, match="no connection"):
            there.read(f"{there.root}/x")
        proxy.pass_all()
        assert there.read(f"{there.root}/x") == b""
    finally:
        proxy.stop()


@pytest.mark.parametrize("how", ["drop", "cut", "twice"])
def test_a_creation_that_was_done_and_is_told_as_not_done_has_its_content(
    how: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    proxy = Proxy(s3_server.endpoint)
    proxy.start()
    try:
        for name, value in s3_server.through(proxy.url).items():
            monkeypatch.setenv(name, value)
        there = open_storage(s3_server.url(f"told-{how}"))
        proxy.fail(Fault(methods=("PUT",), times=1, drop=how == "drop", cut=how == "cut", twice=how == "twice"))
        assert not there.create(f"{there.root}/x", b"own")
        assert proxy.hits == 1
        assert there.read(f"{there.root}/x") == b"own"
    finally:
        proxy.stop()


def test_hadoop_uses_the_credentials_of_the_environment_and_gets_none() -> None:
    google = Gcs().spark_settings({"GOOGLE_APPLICATION_CREDENTIALS": "/account.json"})
    assert google["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    kind, principal = "spark.hadoop.fs.azure.account.auth.type", {"AZURE_CLIENT_ID": "id", "AZURE_TENANT_ID": "tenant"}
    for environ, expected in (
        ({"AZURE_STORAGE_ACCOUNT_KEY": "hunter2"}, "SharedKey"),
        (principal | {"AZURE_CLIENT_SECRET": "hunter2"}, "Custom"),
        (principal | {"AZURE_FEDERATED_TOKEN_FILE": "/token"}, "OAuth"),
        ({"AZURE_STORAGE_SAS_TOKEN": "sig=hunter2"}, "SAS"),
        ({}, "OAuth"),
    ):
        found = Azure().spark_settings(environ)
        assert found[kind] == expected
        assert "hunter2" not in str(found)
    emulator = Azure().spark_settings({"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/devstoreaccount1"})
    assert emulator["spark.hadoop.fs.azure.abfs.endpoint"] == "127.0.0.1:10000"
    for cloud, name in ((Gcs(), "GOOGLE_BASE_URL"), (Azure(), "AZURE_STORAGE_ENDPOINT")):
        with pytest.raises(UnsupportedLake) as refused:
            cloud.spark_settings({name: "http://key:hunter2@host"})
        assert "hunter2" not in str(refused.value)


def test_nothing_of_a_storage_shows_credentials(bucket: Storage, s3_server: S3Server) -> None:
    shown = f"{bucket!r} {vars(bucket)} {bucket.delta_options()} {S3().spark_settings()}"
    assert not [secret for secret in s3_server.secrets if secret in shown]


def test_spark_goes_where_the_environment_says() -> None:
    amazon = S3().spark_settings({"AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert amazon["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert "spark.hadoop.fs.s3a.endpoint" not in amazon
    assert "hunter2" not in str(amazon)
    own = S3().spark_settings({"AWS_ENDPOINT_URL": "http://host:9000/"})
    assert own["spark.hadoop.fs.s3a.endpoint"] == "http://host:9000"
    assert own["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert own["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"


# Leases


def _lease(bucket: Storage, seconds: float = 30.0) -> Lease:
    return Lease(f"{bucket.root}/{COMPACTOR_LOCK}", seconds)


def test_a_lease_has_one_holder_at_a_time(bucket: Storage) -> None:
    first, second = _lease(bucket), _lease(bucket)
    first.check()
    assert first.acquire()
    first.check()
    assert not second.acquire()
    first.release()
    first.release()
    third = _lease(bucket)
    assert third.acquire()
    assert not _lease(bucket).acquire()
    third.release()


@pytest.mark.heavy
def test_a_lease_is_renewed_and_runs_out_when_it_is_not(bucket: Storage) -> None:
    holder = _lease(bucket, 3.0)
    assert holder.acquire()
    path = f"{bucket.root}/{COMPACTOR_LOCK}"
    before = bucket.read(path)
    _until(lambda: bucket.read(path) != before)
    holder.check()
    dead = holder._renewer
    assert dead is not None
    holder._stop.set()  # as if its process had been stopped
    dead.join()
    _until(lambda: _lost(holder))
    waiting = _lease(bucket, 3.0)
    _until(waiting.acquire)
    holder.release()
    waiting.check()
    assert not _lease(bucket).acquire(), "the late release of the first took nothing from the second"
    waiting.release()


@pytest.mark.heavy
def test_a_lease_tells_for_some_time_that_a_holder_left_a_commit_in_doubt(
    bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = _lease(bucket, 3.0)
    assert killed.acquire()
    assert killed.late_until() == 0
    assert killed._renewer is not None
    killed._stop.set()  # as if its process had been killed
    killed._renewer.join()
    for _ in range(2):
        after = _lease(bucket, 3.0)
        _until(after.acquire)
        assert after.late_until() > time.time_ns()
        after.release()
    with monkeypatch.context() as patch:
        patch.setenv("LAKESTREAM_LATE_SECONDS", "0")
        assert after.late_until() == 0
    bucket.delete(f"{bucket.root}/{COMPACTOR_LOCK}")
    for error, late in ((LeaseLost("x"), False), (RuntimeError("no answer"), True)):
        with pytest.raises(type(error)), held(cast("Any", None), bucket.root, "s3://lakes/table", 3.0):
            raise error
        with held(cast("Any", None), bucket.root, "s3://lakes/table", 3.0) as lock:
            assert (lock.late_until() > 0) == late


def test_a_lease_that_another_took_is_lost(bucket: Storage) -> None:
    holder = _lease(bucket, 3.0)
    assert holder.acquire()
    path = f"{bucket.root}/{COMPACTOR_LOCK}"
    bucket.write(path, bucket.read(path).replace(b'"number":', b'"number":9'))
    _until(lambda: _lost(holder))
    holder.release()


def test_of_concurrent_acquisitions_of_a_lease_one_succeeds(bucket: Storage) -> None:
    leases = [_lease(bucket) for _ in range(6)]
    got: list[Lease] = []

    def acquire(lease: Lease) -> None:
        if lease.acquire():
            got.append(lease)

    threads = [threading.Thread(target=acquire, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].release()


def test_the_length_of_leases_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTREAM_LEASE_SECONDS", "1")
    assert lease_seconds() == 3.0
    monkeypatch.setenv("LAKESTREAM_LEASE_SECONDS", "soon")
    with pytest.raises(UnsupportedLake):
        lease_seconds()


def test_locks_of_tables_lie_beside_them() -> None:
    one, other = (table_lock("s3://b/lake", f"s3://b/lake/streams/{name}") for name in ("A", "B"))
    assert one.startswith("s3://b/lake/_locks/")
    assert one != other


def _lost(lease: Lease) -> bool:
    try:
        lease.check()
    except LeaseLost:
        return True
    return False


def _until(condition: object) -> None:
    """Poll until the condition is true, for effects of another thread or of time."""
    deadline = threading.Event()
    assert callable(condition)
    for _ in range(600):
        if condition():
            return
        deadline.wait(0.05)
    raise AssertionError("it did not come about")


# A store that ignores conditions


class _Forgetful(BaseHTTPRequestHandler):
    """Proxy that drops the conditions of requests."""

    target = ""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("if-match", _IF_NONE)}
        request = urllib.request.Request(self.target + self.path, body or None, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            self.send_response(answer.status or 500)
            for name in ("ETag", "Last-Modified", "Content-Type"):
                if answer.headers.get(name):
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


_IF_NONE = "if-none-match"


def test_a_store_that_ignores_conditions_is_refused(bucket: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = type("Handler", (_Forgetful,), {"target": os.environ["AWS_ENDPOINT_URL"]})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
        with pytest.raises(UnsupportedLake, match="conditional writes"):
            _lease(bucket).acquire()
    finally:
        proxy.shutdown()
        proxy.server_close()


class Disk:
    """Records which names of a directory are durable, from the storage's system calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        really_sync, really_link, really_replace, really_rename = os.fsync, os.link, os.replace, os.rename

        def fsync(descriptor: int) -> None:
            really_sync(descriptor)
            self.calls.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

        def link(source: str, target: str) -> None:
            really_link(source, target)
            self.calls.append(("name", os.fspath(target)))

        def replace(source: str, target: str) -> None:
            assert os.path.isdir(source) or ("sync", os.fspath(source)) in self.calls, "renamed before it was synced"
            really_replace(source, target)
            self.calls.append(("name", os.fspath(target)))

        def rename(source: str, target: str) -> None:
            really_rename(source, target)
            self.calls.append(("name", os.fspath(target)))

        for name, call in {"fsync": fsync, "link": link, "replace": replace, "rename": rename}.items():
            monkeypatch.setattr(os, name, call)

    def synced(self) -> set[str]:
        """Return the paths synced since the last call."""
        found = {path for what, path in self.calls if what == "sync"}
        self.calls.clear()
        return found

    def durable(self, path: str) -> bool:
        """Return True if the directory was synced after the name was created."""
        named = max(at for at, call in enumerate(self.calls) if call == ("name", path))
        return ("sync", os.path.dirname(path)) in self.calls[named:]


@pytest.mark.parametrize("empty", [False, True], ids=["renamed", "not mounted"])
def test_nothing_is_made_in_the_place_of_a_lake_that_goes_away(tmp_path: Path, empty: bool) -> None:
    """The lake goes away after it was looked at: nothing makes its root, nor its directories in an empty one."""
    root, aside, mine = tmp_path / "lake", tmp_path / "aside", tmp_path / "mine"
    mine.write_bytes(b"1")
    storage = open_storage(root)
    lakes.identify(storage)
    (root / "streams" / "S").mkdir(parents=True)
    table = open_storage(root / "streams" / "S")
    root.rename(aside)
    if empty:
        root.mkdir()
    for path in (f"{root}/{name}/new/x" for name in sorted(paths.DIRECTORIES)):
        for work in (
            lambda path=path: storage.write(path, b""),
            lambda path=path: storage.create(path, b""),
            lambda path=path: storage.put_file(path, mine),
            lambda path=path: storage.make_directory(path),
            lambda path=path: storage.move(str(mine), path),
            lambda path=path: storage.writing(path).__enter__(),
        ):
            with pytest.raises(FileNotFoundError):
                work()
    for work in (
        lambda: table.write(f"{table.root}/_delta_log/x", b""),
        lambda: table.writing(f"{table.root}/x").__enter__(),
    ):
        with pytest.raises(FileNotFoundError):
            work()
    assert root.exists() is empty
    assert list(tmp_path.rglob("lake/*")) == []
    assert mine.exists()


def test_a_lake_that_goes_away_while_its_directory_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, really = tmp_path / "lake", os.mkdir
    storage = open_storage(root)
    lakes.identify(storage)

    def mkdir(path: str, mode: int = 0o777) -> None:
        monkeypatch.setattr(os, "mkdir", really)
        root.rename(tmp_path / "aside")
        root.mkdir()
        really(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(FileNotFoundError):
        storage.write(f"{root}/segments/S/U/stream.json", b"")
    assert list(root.iterdir()) == []


def test_what_a_directory_has_taken_is_on_disk_with_every_name_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = Disk(monkeypatch), str(tmp_path / "new" / "lake")
    storage = open_storage(root)
    lakes.identify(storage)
    assert disk.synced() >= {str(tmp_path), f"{tmp_path}/new", root}
    above = {f"{tmp_path}/new", root, f"{root}/a", f"{root}/a/b"}
    storage.write(f"{root}/a/b/one", b"1")
    assert disk.durable(f"{root}/a/b/one")
    assert disk.synced() >= above
    assert storage.create(f"{root}/a/b/two", b"2")
    assert disk.durable(f"{root}/a/b/two")
    source = tmp_path / "source"
    source.write_bytes(b"3")
    disk.synced()
    assert storage.put_file(f"{root}/c/d/three", source)
    assert disk.durable(f"{root}/c/d/three")
    assert disk.synced() >= {root, f"{root}/c", f"{root}/c/d"}
    assert not storage.put_file(f"{root}/c/d/three", source)
    assert disk.synced() == {f"{root}/c/d"}, "who put it there may have been killed before it was synced"
    storage.move(f"{root}/c", f"{root}/kept/c")
    assert disk.durable(f"{root}/kept/c")
    assert disk.synced() >= {root, f"{root}/kept"}
    assert storage.read(f"{root}/kept/c/d/three") == b"3"
    os.makedirs(f"{root}/made/by/another")
    storage.make_directory(f"{root}/made/by/another")
    assert disk.synced() >= {f"{tmp_path}/new", root, f"{root}/made", f"{root}/made/by"}
    storage.sync_files([f"{root}/a/b/one", f"{root}/a/b/two"])
    assert disk.synced() == {f"{root}/a/b/one", f"{root}/a/b/two", f"{root}/a/b"}
