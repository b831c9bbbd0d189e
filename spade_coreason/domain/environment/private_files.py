"""Files and directories that only the platform's user may change: opened without links, replaced as a whole, checked.

Another user who can write a directory may put a symbolic link in the place of a file, so that the platform writes to its
target. Hard links to files of others need no check: the kernel refuses to create them (fs.protected_hardlinks).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from contextlib import suppress
from pathlib import Path


def open_private(path: Path, flags: int) -> int:
    """Open or create (0600) a file for this user and return its descriptor. O_TRUNC empties it after the check.

    Raise OSError, whose `strerror` names the remedy, for a symbolic link, for anything but a regular file, and for a file of
    another user. The owner of the directory and root are no others.
    """
    try:
        # A pipe in the place of the file would block without O_NONBLOCK. A regular file ignores it.
        more_flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags & ~os.O_TRUNC | more_flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _unsafe_error(path, "is a symbolic link") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unsafe_error(path, "is no regular file")
        if not _is_trusted(status.st_uid, path):
            raise _unsafe_error(path, f"belongs to another user ({_user_name(status.st_uid)})")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_private(path: Path) -> None:
    """Create a file (0600) unless it exists. It may be a symbolic link, if this user or the owner of the directory made it.

    Raise OSError as `open_private` does.
    """
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and _is_trusted(status.st_uid, path):
            path = path.resolve()
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file as a whole: a reader never sees a part of it, and it has the permissions `mode` from the beginning."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # from a process that was killed
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def find_foreign_writers(directory: Path) -> list[str]:
    """Return a sentence with its remedy for the directory, and each one above it, that other users can write.

    Links are followed. A directory that does not exist yet is skipped, because it is created for this user alone. Above the
    directory, the sticky bit protects files from users who do not own them. A group of this user alone is no other user.
    """
    target = directory.resolve()
    found = []
    for path in (target, *target.parents):
        if not path.exists():
            continue
        status = path.stat()
        is_protected = path != target and status.st_mode & stat.S_ISVTX
        if not is_protected and (problem := describe_writers(path, status)) is not None:
            found.append(problem)
    return found


def describe_writers(path: Path, status: os.stat_result) -> str | None:
    """Return a sentence with its remedy if other users can write a directory with this status; None if they cannot."""
    name = shlex.quote(str(path))
    if status.st_mode & stat.S_IWOTH:
        who, change = "every user of this machine", "o-w"
    elif status.st_mode & stat.S_IWGRP and _has_other_members(status.st_gid):
        who, change = f"every user in the group {_group_name(status.st_gid)}", "g-w"
    else:
        return None
    return f"{path}: {who} can write this directory, and so replace the stored data; run: chmod {change} {name}"


def _has_other_members(group: int) -> bool:
    """Return True if a group has other members than this user and root, as far as this machine knows them."""
    names = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group}
    with suppress(KeyError):
        names |= set(grp.getgrgid(group).gr_mem)
    return not names <= {_user_name(os.geteuid()), "root"}


def _is_trusted(user: int, path: Path) -> bool:
    return user in (0, os.geteuid()) or user == path.parent.stat().st_uid


def _user_name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def _group_name(group: int) -> str:
    with suppress(KeyError):
        return grp.getgrgid(group).gr_name
    return str(group)


def _unsafe_error(path: Path, problem: str) -> OSError:
    return OSError(errno.ELOOP, f"{path} {problem}, and others may have put it there; remove it: rm {shlex.quote(str(path))}")
