"""What TensorFlow and XLA write to the standard error of every start, kept from the user's screen."""
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from ptmjax.parallel import libtpu

_LEVELS = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
_NOISE = re.compile(rb"WARNING: All log messages before absl::|[IW]\d{4} \d\d:\d\d|[IW]0000 00:00:|\d{4}-\d\d-\d\d [\d:.]+: [IW] ")


def set_levels() -> None:
    """Before anything is imported; what the user has set stays."""
    for name, value in _LEVELS.items():
        os.environ.setdefault(name, value)
    if not libtpu.has_chips():  # where it is installed to compile with, jax tries it all the same
        libtpu.alone()


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Around an import that brings TensorFlow, which logs before it reads any level.  All other lines are shown afterwards."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, contextlib.ExitStack() as stack:
        screen = os.dup(2)
        stack.callback(os.close, screen)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(screen, 2)
            held.seek(0)
            for line in held:
                if not _NOISE.match(line):
                    with contextlib.suppress(OSError):  # its terminal may be gone
                        os.write(2, line)
