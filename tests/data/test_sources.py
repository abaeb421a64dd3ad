import bz2
import collections
import gzip
import json
import lzma
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from backports import zstd

from ptmjax.data import adapters, sources
from ptmjax.types import UserError

ROWS = ["one", "two\r\nlines\n\n \nthree", "", " \n", "[MASK] \u2028 <extra_id_0>"]
DOCUMENTS = ["one", "two\nlines\nthree", "[MASK] \u2028 <extra_id_0>"]


def read(*paths, faults=None, **how):
    return list(sources.source([str(path) for path in paths], **how).documents(collections.Counter() if faults is None else faults))


PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd.compress}


@pytest.mark.parametrize("ending, pack", PACKED.items())
def test_json_lines(tmp_path, ending, pack):
    lines = [json.dumps({"n": 1, "body": row}) for row in ROWS] + ["", json.dumps({"body": None})]
    (path := tmp_path / f"a.jsonl{ending}").write_bytes(pack(b"\xef\xbb\xbf" + "\r\n".join(lines).encode()))
    assert read(path, field="body") == DOCUMENTS


@pytest.mark.parametrize("ending, pack", PACKED.items())
def test_text(tmp_path, ending, pack):
    (path := tmp_path / f"a.txt{ending}").write_bytes(pack(b"a\nb\n\nc"))
    assert read(path) == ["a\nb", "c"] and read(path, style="line") == ["a", "b", "c"]


def test_frames_of_zstd_are_all_read_and_a_cut_one_is_a_fault(tmp_path):
    raw = zstd.compress(b"a\n\n") + zstd.compress(b"b\n\n" * 9)
    (path := tmp_path / "a.zst").write_bytes(raw)
    assert read(path) == ["a", *"b" * 9]
    path.write_bytes(raw[:-4])
    with pytest.raises(UserError, match="a.zst cannot be read"):
        read(path)


def test_parquet(tmp_path):
    table = pyarrow.table({"id": [*range(len(ROWS) + 1)], "text": [*ROWS, None]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert read(tmp_path / "a.parquet") == DOCUMENTS
    with pytest.raises(UserError, match="a.parquet has no field 'body', it has 'id', 'text'"):
        read(tmp_path / "a.parquet", field="body")
    with pytest.raises(UserError, match="a.parquet, row 1: 'id' is a int, not a text"):
        read(tmp_path / "a.parquet", field="id")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(UserError, match="b.parquet cannot be read"):
        read(tmp_path / "b.parquet")


@pytest.mark.parametrize("line, fault", [
    ('{"text": "a"', "a.jsonl, line 2 is not JSON"), ("[1]", "line 2 is not an object"), ('{"body": "a"}', "has no field 'text', it has 'body'"),
    ('{"text": 3}', "'text' is a int, not a text"), ("[" * 9000, "line 2 is not JSON"),
])
def test_faults_of_rows(tmp_path, line, fault):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "ok"}}\n{line}\n')
    with pytest.raises(UserError, match=fault):
        read(tmp_path / "a.jsonl")


def test_ill_formed_bytes_in_rows_are_counted_and_no_rows_are_a_fault(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\xff"}\n')
    assert read(tmp_path / "a.jsonl", faults=(faults := collections.Counter())) == ["a\ufffd"] and faults["invalid"] == 1
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n')
    with pytest.raises(UserError, match="a.jsonl is empty: no row has anything in its field 'text'"):
        read(tmp_path / "a.jsonl")


def test_what_is_not_unicode_in_rows_is_counted_and_never_a_fault(tmp_path):
    """Half of a pair of surrogates, as JSON can write it and a str can hold it; columns of parquet that are not UTF-8."""
    (tmp_path / "a.jsonl").write_text(r'{"text": "cut \ud83d"}' + "\n" + r'{"text": "whole \ud83d\ude00"}' + "\n")
    assert read(tmp_path / "a.jsonl", faults=(faults := collections.Counter())) == ["cut \ufffd", "whole \U0001f600"] and faults["invalid"] == 1
    raw = pyarrow.array([b"a\xff\xffb", None, b"ok"], pyarrow.binary())
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    for number, column in enumerate((broken, broken.cast(pyarrow.large_binary()).view(pyarrow.large_string()), broken.dictionary_encode(), raw)):
        pyarrow.parquet.write_table(pyarrow.table({"text": column}), path := tmp_path / f"{number}.parquet")
        assert read(path, faults=(faults := collections.Counter())) == ["a\ufffd\ufffdb", "ok"] and faults["invalid"] == 2


def test_rows_of_datasets_need_not_be_unicode(tmp_path):
    datasets = pytest.importorskip("datasets")
    raw = pyarrow.array([b"a\xff", b"ok"], pyarrow.binary())
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    datasets.Dataset(pyarrow.table({"text": broken})).save_to_disk(str(tmp_path / "d"))
    assert read(f"datasets:{tmp_path / 'd'}", faults=(faults := collections.Counter())) == ["a\ufffd", "ok"] and faults["invalid"] == 1


def test_texts_are_named_so_that_they_mean_the_same_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for given, wanted in (("a*.txt", f"{tmp_path}/a*.txt"), ("datasets:d", f"datasets:{tmp_path}/d"), ("datasets:d@train", f"datasets:{tmp_path}/d@train"),
                          ("datasets:imdb@test", "datasets:imdb@test"), ("tfds:d", "tfds:d"), ("gs://b/a.txt", "gs://b/a.txt")):
        assert sources.placed(given) == wanted


def test_kinds_mix_and_the_field_counts_only_where_there_are_rows(tmp_path):
    (tmp_path / "a.txt").write_text("a\n\nb")
    (tmp_path / "b.jsonl").write_text('{"text": "c", "body": "d"}\n')
    assert read(tmp_path / "*") == ["a", "b", "c"]
    key = lambda name, **how: sources.source(str(tmp_path / name), **how).key()
    assert key("a.txt") == key("a.txt", field="body") != key("a.txt", style="line")
    assert key("b.jsonl") != key("b.jsonl", field="body")


def test_datasets_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ROWS, "n": [*range(len(ROWS))]}).save_to_disk(str(tmp_path / "d"))
    found = sources.source(f"datasets:{tmp_path / 'd'}")
    assert list(found.documents(collections.Counter())) == DOCUMENTS and found.size() > 0
    assert found.key() == sources.source(f"datasets:{tmp_path / 'd'}").key() != sources.source(f"datasets:{tmp_path / 'd'}", field="n").key()
    with pytest.raises(UserError, match="has no field 'body', it has 'n', 'text'"):
        read(f"datasets:{tmp_path / 'd'}", field="body")
    with pytest.raises(UserError, match="cannot be opened"):
        read(f"datasets:{tmp_path / 'none'}@train")


def test_tfds_that_is_prepared_here(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    class TinyBooks(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "title": tfds.features.Text(), "n": np.int64}))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(), "test": iter([(0, {"text": "t", "title": "", "n": 1})])}

        def _generate_examples(self):
            yield from ((i, {"text": row, "title": "x", "n": i}) for i, row in enumerate(ROWS))

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path), raising=False)
    with pytest.raises(UserError, match="tfds:tiny_books is not prepared in .*: `tfds build tiny_books` does that"):
        read("tfds:tiny_books")
    TinyBooks(data_dir=str(tmp_path)).download_and_prepare()
    assert sorted(read("tfds:tiny_books")) == sorted(DOCUMENTS) and read("tfds:tiny_books") == read("tfds:tiny_books:1.0.0@train")
    assert read("tfds:tiny_books@test") == ["t"]
    found = adapters.Tfds("tiny_books")
    assert found.key() == adapters.Tfds("tiny_books").key() != adapters.Tfds("tiny_books@test").key() and found.size() > 0
    for name, field, fault in (("tiny_book", "text", "cannot be opened"), ("tiny_books@dev", "text", "has no split 'dev', it has test, train"),
                               ("tiny_books", "body", "has no field 'body', it has n, text, title"), ("tiny_books", "n", "row 1: 'n' is a int64, not a text")):
        with pytest.raises(UserError, match=fault):
            read(f"tfds:{name}", field=field)


def test_every_scheme_is_known_before_tensorflow_is_there():
    code = "import sys; from ptmjax.data import sources; assert sources.scheme('tfds:a') and 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_dataset_stands_alone(tmp_path):
    with pytest.raises(UserError, match="tfds:... stands alone"):
        read("tfds:a", "b.txt")
