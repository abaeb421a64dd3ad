"""`ptmjax` in a process in which something happens at a named point of train.py: python command.py POINT AT SHELL WORDS...

SHELL is a command in which $PPID is this process ("kill -9 $PPID"); it is done where the point is reached.
"""
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ptmjax.__main__ import console  # noqa: E402
from tests.drivers import train  # noqa: E402

if __name__ == "__main__":
    point, at, shell, *words = sys.argv[1:]
    train.DONE[:] = [lambda: subprocess.run(shell, shell=True, check=True)]
    train.lay(point, at)
    sys.argv[1:] = words
    console()
