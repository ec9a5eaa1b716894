from pathlib import Path

import pytest

from clusterbroker.broker.server.identity import DamagedIdentity, Identity, WrongIdentity, identity_of, stored


def test_a_directory_is_formatted_once(tmp_path: Path) -> None:
    assert stored(tmp_path) is None
    made = identity_of(tmp_path, "a", "c1")
    assert (made.name, made.cluster_id, len(made.disk_id)) == ("a", "c1", 32)
    assert stored(tmp_path) == made
    assert identity_of(tmp_path, "a", "c1") == made


def test_a_directory_keeps_the_cluster_that_it_has_joined(tmp_path: Path) -> None:
    made = identity_of(tmp_path, "a", "c1")
    assert identity_of(tmp_path, "a", "c2") == made


def test_two_directories_are_two_disks(tmp_path: Path) -> None:
    disks = []
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        disks.append(identity_of(tmp_path / name, "a", "c1").disk_id)
    assert disks[0] != disks[1]


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    identity_of(tmp_path, "a", "c1")
    with pytest.raises(WrongIdentity, match="belongs to node 'a', not to 'b': start it as --name a"):
        identity_of(tmp_path, "b", "c1")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "name": "a", "nonsense": 2}'])
def test_a_damaged_identity_is_not_guessed(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity").write_text(text)
    with pytest.raises(DamagedIdentity, match="damaged \\("):
        identity_of(tmp_path, "a", "c1")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity").write_text('{"format": 3, "name": "a", "disk_id": "d", "cluster_id": "c"}')
    with pytest.raises(WrongIdentity, match="written by a newer"):
        stored(tmp_path)


def test_what_is_stored_is_what_was_made(tmp_path: Path) -> None:
    assert identity_of(tmp_path, "a", "") == Identity("a", stored(tmp_path).disk_id, "")  # type: ignore[union-attr]
