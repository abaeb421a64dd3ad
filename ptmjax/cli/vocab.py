"""ptmjax vocab: trains a vocabulary on a text."""
import argparse
import shutil
from pathlib import Path

from ptmjax.cli import own, places, session
from ptmjax.data.trainers import KINDS
from ptmjax.types import INT32, UserError, at_least, at_most

HELP = "train a vocabulary on a text of your own: WordPiece, characters, SentencePiece unigram or BPE, byte-level BPE"
EXAMPLES = """
ptmjax vocab --data='my/*.txt' --kind=wordpiece --size=8000 --out=vocab.txt
ptmjax vocab --data=zh.txt --kind=characters --size=8000 --out=vocab.txt
ptmjax vocab --data=reviews.jsonl --field=body --kind=unigram --size=16000 --out=reviews.model
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    own.add_text(parser, required=True)
    parser.add_argument("--kind", choices=KINDS, default="wordpiece", help="default: %(default)s")
    parser.add_argument("--size", type=int, default=32000, metavar="N", help="at most so many pieces (default: %(default)s)")
    parser.add_argument("--cased", action="store_true", help="keep case")
    parser.add_argument("--out", required=True, type=places.here, metavar="FILE",
                        help="a .txt of wordpiece and characters, a .json of bytebpe, a .model of the others")
    session.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    at_least(1, **{"--size": args.size})
    at_most(INT32, **{"--size": args.size})
    ending = Path(KINDS[args.kind][0]).suffix
    if args.out.suffix != ending:
        raise UserError(f"--out {args.out}: a {args.kind} vocabulary is a {ending} file: name it so")
    if args.out.exists():
        raise UserError(f"--out {args.out} exists: name another file")
    made = own.of(args).trained(args.kind, args.size, args.cache)
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, args.out)
    except OSError as e:
        raise UserError(f"--out {args.out} cannot be written ({e.strerror or e}): name another file") from e
    print(f"{args.out}: {own.opened(str(args.out), 0, not args.cased).size:,} pieces")
    return 0
