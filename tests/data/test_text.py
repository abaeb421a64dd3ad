import collections
import gzip
import hashlib
import json
import lzma
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptmjax.data.text import Distinct, digest, documents, files, runs, sentences, split_of
from ptmjax.types import UserError


def read(path, style="blank"):
    return list(documents(str(path), style))


@pytest.mark.parametrize(
    "raw, style, expected",
    [
        (b"a\nb\n\nc\n", "blank", ["a\nb", "c"]),
        (b"\n\na\n\n\n \t\n\nb", "blank", ["a", "b"]),
        (b"a\r\nb\r\n\r\nc", "blank", ["a\nb", "c"]),
        (b"a\rb\xe2\x80\xa8c\x0cd\n", "blank", ["a\rb\u2028c\x0cd"]),  # LF alone ends a line
        (b"\xef\xbb\xbfa\n\n\xef\xbb\xbfb", "blank", ["a", "\ufeffb"]),  # a BOM only at the start
        (b"a\nb\n\nc\n", "line", ["a", "b", "c"]),
        (b"a\r\r\n", "line", ["a\r"]),
    ],
)
def test_documents(tmp_path, raw, style, expected):
    for name, pack in (("t.txt", bytes), ("t.gz", gzip.compress), ("t.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(raw))
        assert read(tmp_path / name, style) == expected


def test_invalid_bytes_are_replaced_and_counted(tmp_path):
    (tmp_path / "t").write_bytes(b"ok \xff\xfe x\n\xef\xbf\xbd real\n\ncaf\xc3")
    faults = collections.Counter()
    assert list(documents(str(tmp_path / "t"), faults=faults)) == ["ok \ufffd\ufffd x\n\ufffd real", "caf\ufffd"]
    assert faults["invalid"] == 3  # the U+FFFD that stands in the text is none


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=300).filter(lambda raw: b"\0" not in raw))
def test_any_bytes_are_text_or_empty(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(raw)
    try:
        found = read(path)
    except UserError as e:
        assert "is empty" in str(e)
    else:
        assert found and all(document.strip() for document in found)


def test_faults_of_a_text_are_one_clear_line(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_bytes(b" \n\n\t\n" * 30000)
    (tmp_path / "binary").write_bytes(b"a" * 1000 + b"\0")
    (tmp_path / "binary.gz").write_bytes(gzip.compress(b"text\0"))
    (tmp_path / "not.gz").write_bytes(b"plain text")
    (tmp_path / "not.xz").write_bytes(b"plain text")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(bytes(range(1, 256)) * 50)[:-9])
    (tmp_path / "cut.xz").write_bytes(lzma.compress(bytes(range(1, 256)) * 50)[:-9])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # nobody would ever write there
    (tmp_path / "zero").symlink_to("/dev/zero")  # nor is this ever read to its end
    for name, what in [
        ("none", "does not exist"), ("no*thing", "does not exist"), ("empty", "is empty"), ("blank", "is empty"), ("binary", "is binary"),
        ("binary.gz", "is binary"), ("not.gz", "cannot be read"), ("not.xz", "cannot be read"), ("cut.gz", "cannot be read"),
        ("cut.xz", "cannot be read"), ("folder", r"is a folder: name its files \("), ("pipe", "is no file"), ("zero", "is no file"),
    ]:
        with pytest.raises(UserError, match=what) as e:
            read(tmp_path / name)
        assert name in str(e.value) and "\n" not in str(e.value)
    with pytest.raises(UserError, match="style 'words' is not known"):
        read(tmp_path / "empty", "words")


def test_one_empty_file_among_good_ones_is_named(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("")
    with pytest.raises(UserError, match="/b is empty"):
        read(tmp_path / "*")


def test_globs_are_sorted_and_do_not_join_documents(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    assert [p.name for p in files(str(tmp_path / "*.txt"))] == ["a.txt", "b.txt"]
    assert list(documents([str(tmp_path / "c.md"), str(tmp_path / "?.txt")])) == ["c.md", "a.txt", "b.txt"]


def test_digest_follows_the_bytes(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("a")
    assert digest(str(tmp_path / "a")) == digest([str(tmp_path / "b")])
    (tmp_path / "b").write_text("b")
    assert digest(str(tmp_path / "a")) != digest(str(tmp_path / "b"))


def test_digest_is_of_the_files_in_their_order_whatever_is_read_first(tmp_path):
    """By which caches are found: the hash of the files' hashes, of one that is named twice too."""
    paths = [tmp_path / f"{i:02d}" for i in range(40)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * (1 << 20 if i % 7 == 0 else i))
        os.utime(path, (1e9, 1e9))
    of = lambda paths: hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()
    memo = tmp_path / "memo" / "memo"
    for given in (paths, paths[::-1], [paths[3], paths[7], paths[3]]):
        assert digest([*map(str, given)]) == digest([*map(str, given)], memo) == of(given)
    known = json.loads(memo.read_text())
    assert len(known) == 40 and known[f"{paths[3]} 3 1000000000"] == hashlib.sha256(b"\3\3\3").hexdigest()


def test_a_memo_saves_reading_a_text_that_stays(tmp_path):
    path, memo = tmp_path / "a", tmp_path / "cache" / "memo"
    path.write_text("aa")
    fresh = digest(str(path), memo)
    assert not memo.exists() and fresh == digest(str(path))  # it may still be written in this second
    os.utime(path, (1e9, 1e9))
    assert digest(str(path), memo) == fresh and memo.exists()
    path.write_text("bb")
    os.utime(path, (1e9, 1e9))
    assert digest(str(path), memo) == fresh  # the memo's
    os.utime(path, (1e9, 1e9 + 1))
    other = digest(str(path), memo)
    assert other == digest(str(path)) != fresh
    key = next(iter(json.loads(memo.read_text())))
    for broken in ("{", "[]", '{"a": 1}', json.dumps({key: "no digest"}), json.dumps({key: 3}), json.dumps({key: "é" * 64})):
        memo.write_text(broken)
        assert digest(str(path), memo) == other
    path.unlink()
    with pytest.raises(UserError, match="does not exist"):
        digest(str(path), memo)


def test_split_is_by_content():
    assert split_of("the sea", 50) == split_of("the sea", 50)
    held = [split_of(f"document {i}", 50) for i in range(20000)]
    assert 320 < held.count("validation") < 480  # 400 expected, standard deviation 20
    assert held.count("validation") + held.count("train") == 20000


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 9))
def test_runs_are_contiguous(lengths, shards):
    dealt = runs(lengths, shards).tolist()
    assert dealt == [sum(lengths[:i]) * shards // sum(lengths) for i in range(len(lengths))]  # what all caches were made by
    assert len(dealt) == len(lengths) and dealt == sorted(dealt) and 0 <= dealt[0] and dealt[-1] < shards


def test_runs_are_even():
    assert runs([5] * 8, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert runs([100, 1, 1, 1], 2).tolist() == [0, 1, 1, 1]
    assert runs([], 3).tolist() == [] and runs([2**50, 2**50], 4000).tolist() == [0, 2000]


@pytest.mark.parametrize("text, want", [
    ("He came. She left! Why?", ["He came.", "She left!", "Why?"]),
    ('"Stop!" he said. (So I did.) Then', ['"Stop!"', "he said.", "(So I did.)", "Then"]),
    ("Pi is 3.14, see www.a.org now.\nA title\n\n  Next   line ", ["Pi is 3.14, see www.a.org now.", "A title", "Next   line"]),
    ("Wait... what?! Yes.", ["Wait...", "what?!", "Yes."]),
    ("他来了。她走了！“为什么？”没有人说。", ["他来了。", "她走了！", "“为什么？”", "没有人说。"]),
    ("「行く。」と言った。", ["「行く。」", "と言った。"]),
    ("Mr. Smith", ["Mr.", "Smith"]),
    ("\u201cYes.\u201d He", ["\u201cYes.\u201d", "He"]),
    (". . .", [".", ".", "."]), ("", []), (" \n ", []), ("no stop", ["no stop"]),
])  # fmt: skip
def test_sentences(text, want):
    assert sentences(text) == want


def test_a_long_row_of_stops_is_read_once():
    """A square of its length would take hours."""
    dots = "." * 1_000_000
    assert sentences(f"{dots}a b. {dots} c") == [f"{dots}a b.", dots, "c"]


@settings(derandomize=True, deadline=None)
@given(st.text(st.sampled_from("ab .!?\"')\n。！」") | st.characters()))
def test_sentences_lose_only_space(text):
    found = sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)


def test_a_text_whose_name_looks_like_a_glob_is_read(tmp_path):
    (tmp_path / "bracket[1].txt").write_text("one")
    assert read(tmp_path / "bracket[1].txt") == ["one"]
    (tmp_path / "bracket1.txt").write_text("two")
    assert read(tmp_path / "bracket[1].txt") == ["one"] and read(tmp_path / "bracket[12].txt") == ["two"]


def test_where_a_text_was_looked_for_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"text my.txt does not exist in {tmp_path}, where the command runs"):
        read("my.txt")
    with pytest.raises(UserError, match="path of a text is empty"):
        read("")


def test_repeated_documents_are_counted_exactly_and_beyond_the_limit_about(monkeypatch):
    few = Distinct()
    for document in "a b a c a b".split():
        few.add(document)
    assert few.duplicates == 3 and Distinct().duplicates == 0
    monkeypatch.setattr(Distinct, "LIMIT", 1000)
    many = Distinct()
    for i in range(20_000):
        many.add(f"document {i % 15_000}")
    assert len(many.seen) <= 1000 and abs(many.duplicates - 5000) < 700  # 4 deviations of a sample of 500 or more


def test_a_glob_through_folders(tmp_path):
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "b/f.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [str(p.relative_to(tmp_path)) for p in files(f"{tmp_path}/**/*.txt")]
    assert found == ["a.txt", "b/c.txt", "b/d/e.txt"]
    with pytest.raises(UserError, match="cannot be used in a bucket"):
        files("gs://b/**/*.txt")
