"""The join secret: where it is found, when it is made, what is refused, and what comes of it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterbroker.cluster.link.secret import BadSecret, Secret, default_path, find_secret, read_secret


def written(path: Path, data: bytes = b"k" * 40, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_the_flag_comes_before_the_environment_and_that_before_the_home(tmp_path: Path) -> None:
    flag, named = written(tmp_path / "flag", b"f" * 40), written(tmp_path / "named", b"n" * 40)
    environment = {"HOME": str(tmp_path / "home"), "CLUSTERBROKER_SECRET_FILE": str(named)}
    assert find_secret(flag, environment).origin == str(flag)
    assert find_secret(None, environment).origin == str(named)
    made = find_secret(None, {"HOME": str(tmp_path / "home")})
    assert made.origin == str(tmp_path / "home/.config/clusterbroker/secret")
    assert default_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/clusterbroker/secret")


def test_the_default_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    first = find_secret(None, environment)
    path = Path(first.origin)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(path.read_bytes().strip()) >= 32
    assert find_secret(None, environment).key("x") == first.key("x")
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_nodes_that_start_together_make_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: find_secret(None, {"HOME": str(tmp_path)}).key("x"), range(24)))
    assert len(set(keys)) == 1


def test_a_final_newline_is_no_part_of_it(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", b"k" * 40), written(tmp_path / "2", b"k" * 40 + b"\n")
    assert read_secret(one).key("x") == read_secret(two).key("x")


@pytest.mark.parametrize(
    "data, mode, line",
    [
        (b"short\n", 0o600, "has 5 bytes, it needs at least 32: make one with"),
        (b"k" * 40, 0o644, r"is open to every user \(mode 0644\): chmod 600"),
        (b"k" * 40, 0o602, r"is open to every user"),
        (b"k" * 5000, 0o600, "is longer than 4096 bytes"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, data: bytes, mode: int, line: str) -> None:
    path = written(tmp_path / "secret", data, mode)
    with pytest.raises(BadSecret, match=line) as refused:
        read_secret(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "kkkk" not in str(refused.value)


def test_a_missing_or_unreadable_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match="does not exist: copy it from another node, or make one with"):
        find_secret(tmp_path / "none", {})
    with pytest.raises(BadSecret, match=r"cannot read the join secret .*directory"):
        read_secret(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadSecret, match=r"cannot make the join secret .*name a file with --secret-file"):
        find_secret(None, {"XDG_CONFIG_HOME": str(tmp_path / "file")})


def test_the_advice_works(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(BadSecret) as refused:
        read_secret(path)
    assert os.system(str(refused.value).partition("make one with: ")[2]) == 0
    read_secret(path)


def test_keys_differ_by_purpose_and_secret_and_nothing_tells_it() -> None:
    one, two = Secret(b"1" * 40), Secret(b"2" * 40)
    assert len({one.key("beats"), one.key("authority"), two.key("beats")}) == 3
    assert one.key("beats") == Secret(b"1" * 40).key("beats")
    assert "1111" not in repr(one)


def test_founders_with_the_same_peers_make_the_same_cluster() -> None:
    secret = Secret(b"1" * 40)
    peers = ["a=h:1", "b=h:2", "c=h:3"]
    cluster = secret.founded_by(peers)
    assert len(cluster) == 32
    assert cluster == secret.founded_by([*reversed(peers)]) == secret.founded_by([" a=h:1", "c=h:3", "b=h:2 "])
    assert cluster != secret.founded_by(peers[:2])
    assert cluster != Secret(b"2" * 40).founded_by(peers)
