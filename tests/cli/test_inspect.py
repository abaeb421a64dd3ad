"""What is shown of a corruption that is none of ours."""
import numpy as np
from ptmjax.tasks import chinese
from ptmjax.tasks.corpora import EN_PD_4096, ZH_PD_4096
from rich.console import Console

from ptmjax.cli import inspect
from ptmjax.data.choices import Ngrams, Tokens, Words
from ptmjax.data.loader import Source
from ptmjax.data.masking import Masking
from ptmjax.data.order import Sequential
from ptmjax.data.pairs import Pairs
from ptmjax.data.windows import Blocks, Segmented, Sentences

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


def lines(cut, corruption, text="明月何处，长安今日东风。千里江南归去，明月清风知何处。", vocabulary=ZH_PD_4096):
    """(original, corrupted) of its first record."""
    source = Source(list(cut([text], vocabulary)), Sequential(1), corruption, 0, "t")
    return [line.plain for line in inspect.shown(source.example(0), vocabulary, inspect.chosen(source, 0))], source.example(0)


def test_words_are_together_and_chosen_units_in_brackets():
    for corruption, cut in ((Masking(ZH_PD_4096, 40, rate=0.3, choice=Words()), Segmented(Blocks(38), chinese.WORDS)),
                            (Pairs(Masking(ZH_PD_4096, 40, rate=0.3, choice=Ngrams((0.2, 0.8)))), Segmented(Sentences(60), chinese.WORDS)),
                            (Masking(ZH_PD_4096, 40, rate=0.3, choice=chinese.MIXED), Segmented(Blocks(38), chinese.UNITS))):
        (original, corrupted), row = lines(cut, corruption)
        n = int((row["segments"] > 0).sum())
        assert "长安" in original and "[长 安" not in original and "长 安" not in corrupted.replace("[MASK]", "") or "长 安" in corrupted
        assert original.startswith("original   [CLS] ") and len(corrupted.split()) == n + 1  # pieces of what is shown stay apart
        plain = lambda text: "".join(ZH_PD_4096.piece(i) for i in text)
        assert "".join(original.split()[1:]).replace("[", "").replace("]", "") == plain(row["targets"][:n]).replace("[", "").replace("]", "")
        brackets = original.replace("[CLS]", "").replace("[SEP]", "").replace("[UNK]", "")
        assert brackets.count("[") == brackets.count("]")
    whole = Masking(ZH_PD_4096, 8, rate=0.5, choice=Words("phrases"))
    (original, _), row = lines(Segmented(Blocks(6), chinese.UNITS), whole, "知何处明月")
    assert ("[知 何处]" in original or "[知何处]" in original) == bool(row["weights"][1]) and "[明月]" in original or row["weights"][1]


def test_english_words_are_bracketed_and_single_pieces_are_as_before():
    (original, _), row = lines(Blocks(38), Masking(EN_PD_4096, 40, rate=0.5, choice=Words()), "a whaleship of nantucketers " * 3, EN_PD_4096)
    assert "[\u2581" in original
    source = Source(list(Blocks(38)(["a whale"], EN_PD_4096)), Sequential(1), Masking(EN_PD_4096, 40, choice=Tokens()), 0, "t")
    assert inspect.chosen(source, 0) is None
