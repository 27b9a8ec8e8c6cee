"""A secret is read only from a file that nobody else can read or replace."""

import os
import threading
from pathlib import Path

import pytest

from caboose_wire.private_files import NotPrivate, check_named, read_or_make, user_secret_path


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "caboose" / "secret"
    made = read_or_make(path)
    assert len(made) == 64
    assert read_or_make(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == ["secret"]


def test_all_that_come_first_at_once_get_the_same(tmp_path: Path) -> None:
    found: list[bytes] = []
    start = threading.Barrier(8)

    def come() -> None:
        start.wait()
        found.append(read_or_make(tmp_path / "caboose" / "secret"))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_not_trusted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "caboose" / "secret"
    read_or_make(path)
    path.chmod(mode)
    with pytest.raises(NotPrivate, match=f"{path} can be read or changed by other users.*chmod 600 {path}"):
        read_or_make(path)


def test_nor_is_one_that_others_can_replace(tmp_path: Path) -> None:
    path = tmp_path / "caboose" / "secret"
    read_or_make(path)
    path.parent.chmod(0o770)
    with pytest.raises(NotPrivate, match="chmod 700"):
        read_or_make(path)


def test_nor_a_link_to_another_file(tmp_path: Path) -> None:
    target, path = tmp_path / "planted", tmp_path / "caboose" / "secret"
    target.write_text("a secret that somebody else knows")
    target.chmod(0o600)
    path.parent.mkdir(mode=0o700)
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        read_or_make(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_nor_a_file_or_a_directory_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "caboose" / "secret"
    read_or_make(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        read_or_make(path)
    os.chown(path.parent, 12345, 12345)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        read_or_make(path)


def test_a_file_that_a_person_names_may_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "named"
    check_named(path)
    path.write_text("a secret of enough characters")
    path.chmod(0o600)
    check_named(path)
    for mode in (0o640, 0o644):
        path.chmod(mode)
        with pytest.raises(NotPrivate, match=f"mode {mode:o}.*chmod 600"):
            check_named(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_mounted_secret_of_another_owner_may_be_read_by_its_group(tmp_path: Path) -> None:
    path = tmp_path / "mounted"
    path.write_text("a secret of enough characters")
    os.chown(path, 12345, 12345)
    path.chmod(0o440)
    check_named(path)
    path.chmod(0o444)
    with pytest.raises(NotPrivate):
        check_named(path)


def test_the_place_is_the_users_own() -> None:
    assert user_secret_path({"XDG_STATE_HOME": "/state"}) == Path("/state/caboose/secret")
    expected = Path.home() / ".local/state/caboose/secret"
    assert user_secret_path({}) == user_secret_path({"XDG_STATE_HOME": "not/absolute"}) == expected
