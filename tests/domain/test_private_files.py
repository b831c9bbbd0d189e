"""Files that no other user can redirect, and directories that others can write."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from spade_coreason.domain.environment.private_files import (
    create_private,
    describe_writers,
    find_foreign_writers,
    open_private,
    replace_file,
)

NOBODY = pwd.getpwnam("nobody")
FLAGS = [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_APPEND | os.O_CREAT]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_link_is_not_followed_and_the_error_says_how_to_remove_it(tmp_path: Path, flags: int) -> None:
    victim, link, dangling = tmp_path / "victim", tmp_path / "my lock", tmp_path / "dangling"
    victim.write_text("precious")
    link.symlink_to(victim)
    dangling.symlink_to(tmp_path / "new")
    for path in (link, dangling):
        with pytest.raises(OSError, match="is a symbolic link") as caught:
            open_private(path, flags)
        assert str(caught.value.strerror).endswith(f"rm '{path}'" if " " in path.name else f"rm {path}")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("flags", [FLAGS[0], FLAGS[1]])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_does_not_block(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="is no regular file"):
        open_private(tmp_path / "lock", flags)


def test_a_new_file_is_that_of_its_owner_only(tmp_path: Path) -> None:
    os.close(open_private(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_file_is_emptied_after_the_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    os.close(open_private(tmp_path / "file", os.O_WRONLY | os.O_TRUNC))
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create the files of another user")
def test_a_file_or_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        os.chown(tmp_path / name, NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)
    with pytest.raises(OSError, match="is a symbolic link"):
        create_private(tmp_path / "link")
    with pytest.raises(OSError, match=r"belongs to another user \(nobody\)"):
        open_private(tmp_path / "file", os.O_RDWR)
    os.chown(tmp_path, NOBODY.pw_uid, -1)  # in a directory of theirs, it is theirs to decide
    os.close(open_private(tmp_path / "file", os.O_RDWR))


def test_a_database_may_be_a_link_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / "platform.db").symlink_to(tmp_path / "disk.db")
    create_private(tmp_path / "platform.db")
    assert (tmp_path / "disk.db").stat().st_mode & 0o777 == 0o600


def test_a_replaced_file_leaves_the_target_of_a_link_alone(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("run.json", "run.json.part"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "run.json", b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "run.json").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["run.json", "victim"]


def _status(mode: int, group: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, 0, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "group", "problem"),
    [
        (0o700, NOBODY.pw_gid, None),
        (0o755, NOBODY.pw_gid, None),
        (0o770, 4_000_000, None),  # a group without members, as in a container
        (0o2775, os.getegid() if os.geteuid() == 0 else 4_000_000, None),  # the private group of umask 002
        (0o777, 0, "every user of this machine can write this directory, and so replace the stored data; run: chmod o-w /a"),
        (0o770, NOBODY.pw_gid, "every user in the group "),
        (0o775, NOBODY.pw_gid, "run: chmod g-w /a"),
    ],
)
def test_who_else_can_write_a_directory(mode: int, group: int, problem: str | None) -> None:
    found = describe_writers(Path("/a"), _status(mode, group))
    assert found is None if problem is None else problem in (found or "")


def test_directories_above_count_unless_they_are_sticky(tmp_path: Path) -> None:
    directory = tmp_path / "open" / "data"
    directory.mkdir(parents=True)
    assert find_foreign_writers(directory) == []
    directory.parent.chmod(0o1777)
    assert find_foreign_writers(directory) == []
    assert find_foreign_writers(directory / "not yet") == []
    directory.parent.chmod(0o777)
    [above] = find_foreign_writers(directory)
    assert above.endswith(f"chmod o-w {tmp_path}/open")
    directory.chmod(0o1777)  # here others could put a file before the platform does
    remedies = [problem.rpartition("run: ")[2] for problem in find_foreign_writers(directory)]
    assert remedies == [f"chmod o-w {directory}", f"chmod o-w {directory.parent}"]


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "data").symlink_to(tmp_path / "target")
    assert find_foreign_writers(tmp_path / "data") == []
    (tmp_path / "target").chmod(0o707)
    assert find_foreign_writers(tmp_path / "data")
