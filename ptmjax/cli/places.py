"""Files and folders that options name (types of argparse, which names the option where one raises), and how a file comes into one."""
import argparse
from pathlib import Path

from etils import epath

from ptmjax.data import text
from ptmjax.types import UserError

PARTIAL = ".partial"


def anywhere(path: str) -> epath.Path:
    """A folder that lies here, or in a bucket."""
    try:
        return epath.Path(text.reachable(path))
    except UserError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def here(path: str) -> Path:
    """A file or folder that must lie on this machine."""
    if "://" in path:
        raise argparse.ArgumentTypeError(f"{path}: this must lie on this machine (a bucket can be mounted, or copied from)")
    return Path(path)


def whole(path: epath.Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    partial = path.parent / f"{path.name}{PARTIAL}"
    partial.write_bytes(content)
    partial.replace(path)
