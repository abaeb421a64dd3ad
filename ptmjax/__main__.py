"""The process `ptmjax` (and python -m ptmjax): main's exit code, and an end that nothing delays."""
import sys

from ptmjax.training import interrupt


def console() -> None:
    """Runs the command line; code 1 and a traceback for what is a fault of this code."""
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
