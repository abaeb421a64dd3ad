"""Shipped texts and vocabularies (their licences: shipped/NOTICE.txt)."""
from pathlib import Path

from ptmjax.data.bytebpe import ByteBPE
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.wordpiece import WordPiece

SHIPPED = Path(__file__).parent / "shipped"

EN_PD_SMALL = str(SHIPPED / "en_pd_small.txt.xz")  # 6.2 MB of English prose, blank line = document break
EN_PD_4096 = SentencePiece(str(SHIPPED / "en_pd_4096.model"))  # lower-cased unigram pieces of its training split
EN_PD_COLLOCATIONS = str(SHIPPED / "en_pd_collocations.txt")  # n-grams of its training split that hold together (collocations.py)
EN_ZH = str(SHIPPED / "en_zh_libo.tsv.xz")  # 24,726 lines of English, a tab, the same in Chinese; 1.9 MB and .7 M characters
EN_ZH_4096 = SentencePiece(str(SHIPPED / "en_zh_4096.model"))  # lower-cased unigram pieces of both sides of its training split
EN_PD_4096_SENTINELS = SentencePiece(EN_PD_4096.path, sentinels=100)  # the same with T5's sentinels behind
EN_PD_BYTEBPE_4096 = ByteBPE(str(SHIPPED / "en_pd_bytebpe_4096.json"))  # byte-level BPE pieces of it, cased, with RoBERTa's symbols

ZH_PD_SMALL = str(SHIPPED / "zh_pd_small.jsonl.xz")  # 1.0 MB of characters: poems, a row each (text, genre shi, ci or qu, title, author)
ZH_PD_4096 = WordPiece(str(SHIPPED / "zh_pd_4096.txt"))  # the commonest characters of its training split
ZH_PD_UNITS = str(SHIPPED / "zh_pd_units.tsv")  # words, phrases, places and persons in it
ZH_PD_SIMILAR = str(SHIPPED / "zh_pd_similar.tsv")  # characters and words of its training split, and those that are used alike
ZH_SPACED, ZH_TAGGED, ZH_DIALOGUE = (str(SHIPPED / f"zh_{name}.txt") for name in ("spaced", "tagged", "dialogue"))  # how such texts look
