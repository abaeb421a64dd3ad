"""How a cache gains anything: made in a temporary folder inside it and renamed, so that it is there whole or not at all, whoever makes
it and however many do so at once."""
import contextlib
import fcntl
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ptmjax.types import UserError

WEEK = 7 * 86400  # seconds
PART = ".part-"  # a temporary folder is .part-HOST-RANDOM


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A temporary folder in the cache `folder`; what is made there stays by `keep`, all else of it is gone at the end.

    What the system refuses (no room, no permission) is a UserError. A killed process leaves its temporary folder, which the next
    that makes anything there removes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        part, lock = new(folder)
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)
    except OSError as e:
        raise UserError(f"cannot write the data cache in {folder} ({e.strerror or e}): make room there, or name another --cache") from e


def keep(made: Path, final: Path) -> Path:
    """Names a file or folder `final`; where another process was first, what that made stays: it is the same."""
    if made.is_dir():
        made.chmod(0o755)  # mkdtemp's 0700 would hide the cache from other users
    with contextlib.suppress(OSError):
        made.rename(final)
    if not final.exists():
        raise UserError(f"cannot rename {made} to {final}: check the folder's permissions")
    return final


def new(folder: Path) -> tuple[Path, int]:
    """A temporary folder, and its lock, which ends with this process however it ends."""
    while True:
        part = Path(tempfile.mkdtemp(prefix=f"{PART}{host()}-", dir=folder))
        try:
            lock = os.open(part, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for a leftover
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if part.exists():
            return part, lock
        os.close(lock)  # as above, between these lines


def sweep(folder: Path) -> None:
    """Removes what killed processes left: unlocked temporary folders of this host (a lock may not reach others), and any that
    nothing was written to for a week."""
    for path in folder.glob(f"{PART}*"):
        with contextlib.suppress(OSError):  # it is gone, locked or another user's
            newest = max(p.stat().st_mtime for p in (path, *path.iterdir()))
            if not path.name.startswith(f"{PART}{host()}-") and time.time() - newest < WEEK:
                continue
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)


def host() -> str:
    return re.sub("[^A-Za-z0-9.]", "_", socket.gethostname())
