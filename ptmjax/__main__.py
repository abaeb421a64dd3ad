"""python -m ptmjax"""
import sys

from ptmjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
