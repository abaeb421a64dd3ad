"""Both routes: plain SeqIO and the loader give the same examples."""
import collections
import dataclasses

import jax
import numpy as np
import ptmjax.tasks
import pytest
import seqio
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ptmjax.tasks.corpora import EN_PD_4096

from ptmjax.data import loader, registry
from ptmjax.data.choices import Words
from ptmjax.data.masking import Masking
from ptmjax.data.order import Shuffled
from ptmjax.data.pairs import Pairs
from ptmjax.data.records import build
from ptmjax.data.spans import Spans
from ptmjax.data.task import Mixture, Task
from ptmjax.data.trainers import train_wordpiece
from ptmjax.data.vocabulary import SentencePiece
from ptmjax.data.windows import Blocks, Joined, Segmented, Sentences
from ptmjax.data.wordpiece import WordPiece
from ptmjax.types import UserError


def other_record(example, rng, lookup):
    """A corruption that looks another record up."""
    other = lookup[int(rng.integers(len(lookup)))]["tokens"]
    return {"tokens": np.resize(other, 6).astype(np.int32), "label": np.int32(len(lookup))}


other_record.features = ("tokens", "label")


@pytest.fixture(scope="module")
def tasks(english, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text("\n\n".join(f"Document {i} of the sea and the whale. " * (i % 5 + 1) for i in range(60)))
    masked = Task("both_mlm", str(path), english, Blocks(16, minimum=3), Masking(english, 18, types=True), holdout=6)
    looked = Task("both_lookup", str(path), english, Blocks(16, minimum=3), other_record, holdout=6)
    sentinels = SentencePiece(english.path, sentinels=20)
    whole = Task("both_wwm", str(path), english, Blocks(16, minimum=3), Masking(english, 18, choice=Words()), holdout=6)
    paired = Task("both_nsp", str(path), english, Sentences(24), Pairs(Masking(english, 18), short=0.3), holdout=6)
    spans = Task("both_spans", str(path), sentinels, Joined(10, minimum=3), Spans(sentinels, 12, 16, rate=0.5, mean=2.0), holdout=6)
    found = (masked, looked, whole, paired, spans)
    for task in found:
        registry.register(task, seed=5)
    yield found
    for task in found:
        registry.remove(task.name)


def key_of(example):
    arrays = {key: np.asarray(x) for key, x in example.items() if key not in ("start", "row_weights")}
    return tuple(sorted((key, x.dtype.name, x.tobytes()) for key, x in arrays.items()))


def through_seqio(name, **more):
    ds = seqio.get_mixture_or_task(name).get_dataset(sequence_length=None, **{"split": "train", "shuffle": True, "seed": 1, **more})
    return list(ds.as_numpy_iterator())


@pytest.mark.parametrize("which", ["both_mlm", "both_lookup", "both_wwm", "both_nsp", "both_spans"])
def test_both_routes_give_the_same_epochs(tasks, which, tmp_path):
    task = next(task for task in tasks if task.name == which)
    records = build(task, "train", str(tmp_path), workers=1, progress=False)
    source = loader.Source(records, Shuffled(len(records), 1), task.corruption, 5, task.name)
    ours = [key_of(source.example(p)) for p in range(2 * len(records))]
    once, twice = through_seqio(task.name), through_seqio(task.name, num_epochs=2)
    assert len(once) == len(records) > 100
    assert collections.Counter(map(key_of, once)) == collections.Counter(ours[: len(records)])
    assert collections.Counter(map(key_of, twice)) == collections.Counter(ours)
    assert len(set(ours)) > 1.5 * len(records)  # the second epoch is not the first


def test_static_masks_through_both_routes(tasks, english, tmp_path):
    """Epoch 2 is epoch 0 again with dupe_factor 2, epoch 1 is not."""
    task = dataclasses.replace(tasks[0], name="both_static")
    registry.register(task, seed=5, dupe_factor=2)
    try:
        thrice = through_seqio("both_static", num_epochs=3)
    finally:
        registry.remove("both_static")
    records = build(task, "train", str(tmp_path), workers=1, progress=False)
    source = loader.Source(records, Shuffled(len(records), 1), task.corruption, 5, task.name, dupe_factor=2)
    epochs = [[key_of(source.example(e * len(records) + i)) for i in range(len(records))] for e in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[2]) != sorted(epochs[1])
    assert collections.Counter(map(key_of, thrice)) == collections.Counter(sum(epochs, []))
    with pytest.raises(UserError, match="dupe_factor is 0"):
        registry.register(dataclasses.replace(task, name="both_never"), dupe_factor=0)


@pytest.mark.parametrize("name", ["en_pd_nsp_64", "en_pd_wwm_64", "en_pd_rtd_64", "en_pd_spans_64"])
def test_shipped_tasks(name, tmp_path):
    """Every shipped objective: full rows of its length, and a readout that hides what it scores."""
    task = registry.read(name)
    records = build(task, "validation", str(tmp_path), workers=1, progress=False)
    assert registry.read(name.replace("64", "128")) and registry.read(name.replace("64", "512"))
    trained, read = (loader.Source(records, Shuffled(len(records)), c, 0, name).examples(np.arange(256)) for c in (task.corruption, task.readout))
    assert len(records) > 200 and trained["tokens"].shape == (256, 64)
    scored, v = read["weights"] > 0, task.vocabulary
    assert not np.isin(read["targets"][scored], sorted(v.special)).any() and scored.any(1).all()
    assert task.readout.view and not task.corruption.view
    bound = task.corruption.bound(records.counts)
    assert 5 < bound["unigram"] < 6.5
    if name == "en_pd_spans_64":
        assert trained["targets"].shape == (256, 14) and trained["segments"].mean() > 0.95 and "bound" not in bound
        assert (trained["weights"] == trained["decoder_segments"]).all() and (trained["tokens"] == read["tokens"]).all()
    else:
        assert (read["tokens"][scored] == v.mask).all() and (trained["weights"] == read["weights"]).all() and scored.sum(1).max() <= 10
    if name == "en_pd_nsp_64":
        assert trained["segments"].mean() > 0.93 and 0.4 < trained["label"].mean() < 0.8 and (trained["row_weights"] == 1).all()
    if name == "en_pd_rtd_64":
        shown = trained["tokens"][scored]
        assert ((shown == v.mask) | (shown == trained["targets"][scored])).all() and abs((shown == v.mask).mean() - 0.85) < 0.03


def test_shards_go_by_record(tasks):
    whole = sorted(int(e["index"]) for e in through_seqio("both_mlm"))
    for hosts in (2, 5):
        parts = [[int(e["index"]) for e in through_seqio("both_mlm", shard_info=seqio.ShardInfo(i, hosts))] for i in range(hosts)]
        assert sorted(sum(parts, [])) == whole == list(range(len(whole)))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert through_seqio("both_mlm", shard_info=seqio.ShardInfo(len(whole), len(whole) + 1)) == []  # more hosts than records


def test_static_shapes_and_seeds(tasks):
    ds = seqio.get_mixture_or_task("both_mlm").get_dataset(split="validation", shuffle=False)
    assert {key: tuple(s.shape) for key, s in ds.element_spec.items()} == dict(
        tokens=(18,), targets=(18,), weights=(18,), segments=(18,), types=(18,), index=()
    )
    index = [int(e["index"]) for e in ds.as_numpy_iterator()]
    assert index == list(range(len(index))) and len(index) > 10
    order = [[int(e["index"]) for e in through_seqio("both_mlm", seed=seed)] for seed in (1, 1, 2)]
    assert order[0] == order[1] != order[2] and order[0] != sorted(order[0])


def test_get_dataset_and_mixtures(tasks):
    seqio.MixtureRegistry.add("both_mix", [("both_mlm", 1)])
    try:
        ds = seqio.get_mixture_or_task("both_mix").get_dataset({"tokens": 18}, split="train", shuffle=False, num_epochs=1)
        mixed = [key_of(e) for e in ds.as_numpy_iterator()]
        assert registry.read("both_mix") == Mixture("both_mix", (tasks[0],), (1.0,))  # of our tasks: it can be trained on
    finally:
        seqio.MixtureRegistry.remove("both_mix")
    assert sorted(mixed) == sorted(map(key_of, through_seqio("both_mlm")))
    as_it_is = seqio.PassThroughFeatureConverter()
    plain = seqio.get_dataset("both_mlm", {"tokens": 18}, feature_converter=as_it_is, dataset_split="train", shuffle=False)
    assert sorted(map(key_of, plain.as_numpy_iterator())) == sorted(mixed)


def test_a_mixture_through_both_routes(tasks, english, tmp_path):
    """SeqIO draws which task comes next; every example that it gives is one that the loader gives, at the same rates."""
    first = tasks[0]
    longer = dataclasses.replace(first, name="both_longer", cut=Blocks(8, minimum=3))
    one = Mixture("both_two", (first, longer), exponent=0.5)
    mixture = Mixture("both_nested", (one, dataclasses.replace(first, name="both_again")), rates=(3, 1))
    registry.register(one, seed=5)
    registry.register(mixture, seed=5)
    try:
        assert registry.read("both_two") == one and registry.read("both_nested") == mixture and registry.read("both_longer") == longer
        found = through_seqio("both_nested", num_epochs=2)
        parts = [build(task, "train", str(tmp_path), workers=1, progress=False) for task in mixture.tasks]
        sources = [loader.Source(records, Shuffled(len(records)), task.corruption, 5, task.name) for task, records in zip(mixture.tasks, parts)]
        ours = [{key_of(s.example(p)) for p in range(2 * len(s.records))} for s in sources]
        seen = np.array([[key_of(e) in task for task in ours] for e in found])
        assert seen.any(1).all()
        shares = mixture.shares([len(records) for records in parts])
        n, m = len(parts[0]), len(parts[1])
        assert shares == pytest.approx([0.75 * n**0.5 / (n**0.5 + m**0.5), 0.75 * m**0.5 / (n**0.5 + m**0.5), 0.25])
        rates = [seqio.get_mixture_or_task("both_nested").get_rate(seqio.TaskRegistry.get(task.name)) for task in mixture.tasks]
        assert rates == pytest.approx(shares) and np.abs(seen.mean(0) - shares).max() < 0.1
        with pytest.raises(UserError, match="'both_mlm' is registered already"):
            registry.register(Mixture("both_mlm", (first,), (1,)))
        with pytest.raises(UserError, match="another task is registered as 'both_mlm'"):
            registry.register(Mixture("both_three", (dataclasses.replace(first, holdout=7),), (1,)))
    finally:
        for name in ("both_two", "both_nested"):
            registry.remove(name)
        for name in ("both_longer", "both_again"):
            registry.remove(name)


@dataclasses.dataclass(frozen=True)
class Halves:
    """A segmenter: every two characters are a word."""

    def __call__(self, text):
        return [text[i : i + 2] for i in range(0, len(text), 2)]


CJK = "使用语言模型"


def test_marked_words_pass_through_seqio(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CJK]), encoding="utf-8")
    (tmp_path / "zh.txt").write_text("\n\n".join(CJK[i % 6] + CJK[i // 6] + CJK[:4] for i in range(36)), encoding="utf-8")
    v = WordPiece(tmp_path / "vocab.txt")
    task = Task("zh_halves", str(tmp_path / "zh.txt"), v, Segmented(Blocks(6), Halves()), Masking(v, 8, rate=0.3, choice=Words()), holdout=5)
    registry.register(task)
    try:
        found = list(through_seqio("zh_halves"))
    finally:
        registry.remove("zh_halves")
    weights = np.array([e["weights"] for e in found])
    assert len(weights) > 20 and (weights[:, 1:7:2] == weights[:, 2:7:2]).all() and (weights.sum(1) == 2).all()


ODD = ["The quick brown fox's tail, 3.14 times!", "Elle a mangé l'œuf à Noël; ça va?", "Straße, Größe, Maß: ein Übel", "İstanbul'da ışık, ığdır İ i", "Ёлка, йод и Й \u0438\u0306",
       "Ἀθῆναι, ΌΣΟΣ ς", "你好，世界！我喜欢你。", "カタカナ ｶﾅ ひらがな", "한국어 문장입니다.", "العربية مَكْتُوبَة", "हिन्दी में क्षमा", "ไทยภาษา", "👩\u200d👩\u200d👧 emoji 😀🇩🇪 ok",
       "e\u0301 é", "a\u00a0b\u3000c\u200bd", "ﬁ ½ ① ™ …", "soft\u00adhyphen", "tab\tand\u2028line", "don't—stop “quotes”", "Tiếng Việt có dấu"]


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_a_text_of_many_scripts_has_the_same_ids_on_both_routes(kind, tmp_path):
    """Pitfall 31: 200 lines. SentencePiece's own operation in a graph of TensorFlow gives them as well; that of tensorflow_text for
    BERT does not (it makes ss of ß), so there is one tokeniser for both routes, which test_wordpiece holds to transformers'."""
    lines = [f"{one} {ODD[(7 * i + k) % 20]} {k}" for i, one in enumerate(ODD) for k in range(10)]
    (tmp_path / "many.txt").write_text("\n".join(lines), encoding="utf-8")
    if kind == "wordpiece":
        train_wordpiece(lines, str(tmp_path / "vocab.txt"), 900)
    vocabulary = EN_PD_4096 if kind == "sentencepiece" else WordPiece(tmp_path / "vocab.txt")
    task = Task("many", str(tmp_path / "many.txt"), vocabulary, Blocks(126), Masking(vocabulary, 128), style="line", holdout=10**6, shards=1)
    registry.register(task)
    try:
        found = [e["targets"][1 : e["segments"].sum() - 1].tolist() for e in through_seqio("many", shuffle=False)]
    finally:
        registry.remove("many")
    assert len(lines) == 200 and found == [vocabulary.encode(line).tolist() for line in lines]
    if kind == "sentencepiece":
        graph = seqio.SentencePieceVocabulary(vocabulary.path).tf_tokenizer.tokenize(lines)
        assert graph.to_list() == found


def test_read(tasks):
    assert registry.read("both_mlm") == tasks[0]
    with pytest.raises(UserError, match="task 'both_mln' is not registered: did you mean both_mlm"):
        registry.read("both_mln")
    seqio.TaskRegistry.add("foreign", source=seqio.TextLineDataSource({"train": "x"}), output_features={})
    try:
        with pytest.raises(UserError, match="task 'foreign' is SeqIO's own"):
            registry.read("foreign")
    finally:
        seqio.TaskRegistry.remove("foreign")


def test_shipped_task_through_the_loader(tmp_path):
    assert ptmjax.tasks.__name__ == "ptmjax.tasks"
    task = registry.read("en_pd_mlm_64")
    records = build(task, "validation", str(tmp_path), workers=1, progress=False)
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "model"), devices=jax.devices()[:1])
    source = loader.Source(records, Shuffled(len(records)), task.readout, 0, task.name)
    found = list(loader.evaluation(source, 64, NamedSharding(mesh, P(("data", "fsdp")))))
    assert sum(int((np.asarray(b["index"]) >= 0).sum()) for b in found) == len(records) > 500
    weights, tokens = (np.concatenate([np.asarray(b[key]) for b in found]) for key in ("weights", "tokens"))
    assert (tokens[weights > 0] == task.vocabulary.mask).all()
    assert weights.sum(1).max() == 10
    bound = task.corruption.bound(records.counts)
    assert 5 < bound["bound"] < bound["unigram"] - 0.5 < 6.5
