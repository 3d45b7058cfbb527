"""The directory of account tokens."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from lakestream.net.accounts.resolver import ResolverError
from lakestream.net.accounts.token_files import TokenFiles
from tests.keys import ISSUED_AT, account_jwt, account_key, operator_key

pytestmark = pytest.mark.unit

OPERATOR = operator_key("files")
A, B, C = (account_key(f"files {name}") for name in "ABC")


def token(key: object, issued: int = 0) -> str:
    return account_jwt(key, "X", OPERATOR, claims={"iat": ISSUED_AT + issued})


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_tokens_are_found_again(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 10)
    files.open([])
    files.write(A.public, token(A))
    again = TokenFiles(str(tmp_path), 10)
    again.open([])
    assert (again.accounts(), again.read(A.public), again.read(B.public)) == ([A.public], token(A), "")
    assert again.digest() == files.digest() == hashlib.sha256(token(A).encode()).digest()


def test_what_a_crash_left_is_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    (tmp_path / f"{A.public}.jwt.unfinished").write_text("half")
    (tmp_path / "README").write_text("x")
    (tmp_path / f"{B.public}.jwt").write_text("garbage")
    files = TokenFiles(str(tmp_path), 10)
    files.open([])
    assert names(tmp_path) == sorted(["README", f"{B.public}.jwt"])
    assert (files.accounts(), files.read("README"), files.read("../README")) == ([B.public], "", "")


def test_a_preloaded_token_is_written_unless_a_newer_one_is_there(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 10)
    files.open([(A.public, token(A)), (B.public, token(B))])
    files.write(A.public, token(A, 5))
    again = TokenFiles(str(tmp_path), 10)
    again.open([(A.public, token(A)), (B.public, token(B, 5))])
    assert (again.read(A.public), again.read(B.public)) == (token(A, 5), token(B, 5))


def test_a_full_directory_refuses_a_new_token(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 1)
    files.write(A.public, token(A))
    with pytest.raises(ResolverError, match="jwt store is full"):
        files.write(B.public, token(B))
    files.write(A.public, token(A, 1))
    assert names(tmp_path) == [f"{A.public}.jwt"]


def test_a_full_cache_drops_the_token_that_was_used_least_recently(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 2, evicts=True)
    for key in (A, B):
        files.write(key.public, token(key))
    files.read(A.public)
    files.write(C.public, token(C))
    assert sorted(files.accounts()) == sorted([A.public, C.public])
    assert not (tmp_path / f"{B.public}.jwt").exists()


def test_an_old_token_of_a_cache_is_not_used(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 10, evicts=True, ttl_ns=60 * 10**9)
    files.write(A.public, token(A))
    assert files.read(A.public)
    os.utime(tmp_path / f"{A.public}.jwt", (time.time() - 61,) * 2)
    assert (files.read(A.public), names(tmp_path), files.digest()) == ("", [], bytes(32))


def test_old_tokens_of_a_cache_are_removed(tmp_path: Path) -> None:
    for key in (A, B):
        (tmp_path / f"{key.public}.jwt").write_text(token(key))
    os.utime(tmp_path / f"{A.public}.jwt", (time.time() - 50,) * 2)
    files = TokenFiles(str(tmp_path), 10, evicts=True, ttl_ns=60 * 10**9)
    files.open([])
    files.drop_old()
    assert sorted(files.accounts()) == sorted([A.public, B.public])
    os.utime(tmp_path / f"{A.public}.jwt", (time.time() - 61,) * 2)
    again = TokenFiles(str(tmp_path), 10, evicts=True, ttl_ns=60 * 10**9)
    again.open([])
    again.drop_old()
    assert (again.accounts(), names(tmp_path)) == ([B.public], [f"{B.public}.jwt"])


@pytest.mark.parametrize("hard", [False, True])
def test_deleted_tokens(tmp_path: Path, hard: bool) -> None:
    files = TokenFiles(str(tmp_path), 10, hard_delete=hard)
    files.write(A.public, token(A))
    for _ in range(2):
        files.delete(A.public)
    assert (A.public in files, files.read(A.public), files.digest()) == (False, "", bytes(32))
    assert names(tmp_path) == ([] if hard else [f"{A.public}.jwt.deleted"])


def test_a_file_that_something_else_wrote_counts_when_it_is_read(tmp_path: Path) -> None:
    files = TokenFiles(str(tmp_path), 10)
    files.open([])
    (tmp_path / f"{A.public}.jwt").write_text(token(A))
    assert A.public not in files
    assert files.read(A.public) == token(A)
    assert A.public in files
    (tmp_path / f"{A.public}.jwt").write_bytes(b"x" * ((1 << 20) + 1))
    assert (files.read(A.public), A.public in files) == ("", False)
