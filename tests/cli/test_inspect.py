"""What is shown of a corruption that is none of ours."""
import numpy as np
from ptmjax.tasks.corpora import EN_PD_4096
from rich.console import Console

from ptmjax.cli import inspect

TOKENS = np.array([[EN_PD_4096.cls, 300, 301, 302, EN_PD_4096.sep, 0], [EN_PD_4096.cls, 400, 401, EN_PD_4096.sep, 0, 0]], np.int32)
SAMPLE = {"tokens": TOKENS, "segments": (TOKENS > 0).astype(np.int32), "index": np.arange(2),
          "swapped": np.array([[0, 1, 1, 0, 0, 0], [0] * 6], np.int32), "count": np.array([2, 0])}
RECORDS = [{"tokens": TOKENS[0, 1:4]}, {"tokens": TOKENS[1, 1:3]}]


def told(table) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    console.print(table)
    return console.export_text()


def test_a_corruption_without_targets_shows_its_tokens_and_what_its_own_keys_say():
    row = {key: x[0] for key, x in SAMPLE.items()}
    tokens, swapped = (line.plain for line in inspect.shown(row, EN_PD_4096))
    pieces = [EN_PD_4096.piece(i) for i in (300, 301, 302)]
    assert tokens.split()[0] == "tokens" and all(piece in tokens for piece in pieces) and len(tokens.split()) == 6
    assert swapped.split() == ["swapped", f"{pieces[0]}=1", f"{pieces[1]}=1"]


def test_its_rates():
    cut = inspect.left_out(SAMPLE, RECORDS, EN_PD_4096)
    out = told(inspect.rates(SAMPLE, EN_PD_4096, cut))
    assert cut == 0 and "padding, of all places" in out and "0.2500" in out
    assert "swapped not 0, of real places" in out and f"{2 / 9:.4f}" in out and "scored" not in out


def test_targets_are_shown_beside_own_keys():
    more = {"targets": TOKENS, "weights": (TOKENS == 301).astype(np.float32)}
    lines = [line.plain.split()[0] for line in inspect.shown({key: x[0] for key, x in (SAMPLE | more).items()}, EN_PD_4096)]
    assert lines == ["original", "corrupted", "swapped"] and "kept, of scored" in told(inspect.rates(SAMPLE | more, EN_PD_4096, 0.0))
