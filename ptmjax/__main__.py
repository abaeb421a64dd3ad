"""The process `ptmjax` (and python -m ptmjax): main's exit code, and an end that nothing delays."""
import os
import sys

from ptmjax.training import interrupt

TUNABLES = "GLIBC_TUNABLES"


def with_huge_pages() -> None:
    """Begins the process anew with malloc asking for huge pages: a step on a CPU writes so many new pages that it is a fifth faster
    (tests/bench), and glibc reads this before anything else runs. Without effect where it is set, on other systems and libraries, and
    where this is not what the process was started for (its code would run twice)."""
    file = getattr(sys.modules["__main__"], "__file__", None) or ""
    ours = os.path.isfile(file) and (os.path.basename(file) == "ptmjax" or os.path.realpath(file) == os.path.realpath(__file__))
    if ours and sys.platform == "linux" and TUNABLES not in os.environ and sys.executable:
        os.environ[TUNABLES] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def console() -> None:
    """Runs the command line; code 1 and a traceback for what is a fault of this code."""
    with_huge_pages()
    interrupt.install()
    from ptmjax.cli.main import main  # after the handler: an interrupt while it is imported is no traceback

    try:
        code = main()
    except SystemExit:  # argparse's --help
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code:
        interrupt.leave(code)
    sys.exit(0)


if __name__ == "__main__":
    console()
