"""ELECTRA folders of transformers: generator and discriminator, read, written, and both ways without the loss of a bit."""
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from ptmjax.convert import published
from ptmjax.types import UserError
from tests.models.bert import VOCAB, batch, off, wild
from tests.models.electra import electra

NEAR = 1e-5


def logits(model, b):
    t = {name: torch.from_numpy(np.asarray(x).copy()).long() for name, x in b.items() if name in ("tokens", "types", "segments")}
    with torch.no_grad():
        return model(t["tokens"], attention_mask=t["segments"], token_type_ids=t["types"]).logits.numpy()


def test_our_way_and_back_is_equal_to_the_bit(tmp_path):
    build, b = electra(), batch()
    clean = lambda name, x: x.at[build.leaves[name].sizes[0]:].set(0) if build.leaves[name].unused else x
    params = {name: clean(name, x) for name, x in wild(build).items()}
    published.export(build, params, tmp_path / "out")
    nets, seen = build.nets(params), np.asarray(b["segments"]) > 0
    for name, kind, head, width in (("generator", transformers.ElectraForMaskedLM, "mlm", VOCAB),
                                    ("discriminator", transformers.ElectraForPreTraining, "rtd", 1)):
        opened, report = kind.from_pretrained(tmp_path / "out" / name, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        mine = np.asarray(nets[name].head(head, nets[name].encode(b).state))[seen][:, :width]
        assert off(mine, logits(opened.eval(), b)[seen].reshape(mine.shape)) <= NEAR
        one, alone, left = published.load(tmp_path / "out" / name)
        assert left == [] and set(one.factories) == {name}
        for path, x in alone.items():
            assert np.asarray(params[build.owner(path)]).tobytes() == x.tobytes(), path
        published.export(one, alone, tmp_path / f"again-{name}")
        c, d = (safetensors.numpy.load_file(f / "model.safetensors") for f in (tmp_path / "out" / name, tmp_path / f"again-{name}"))
        assert c.keys() == d.keys() and all(c[n].tobytes() == d[n].tobytes() for n in c)
    said = []
    found = published.initial(tmp_path / "out", build, said.append)
    assert len(said) == 1 and "50 of 50 parameters" in said[0] and found.keys() == params.keys()
    assert all(np.asarray(params[name]).tobytes() == found[name].tobytes() for name in params)
    found = published.initial(tmp_path / "out" / "discriminator", build, said.append)
    assert "generator/project/bias" in said[2] and "keeps its initial law" in said[2]


class Full:
    """A vocabulary that finds no room for the second of two."""

    symbols, saved = {"pad": 5}, 0

    def save(self, folder, before, after, inputs):
        assert (before, after) == (("cls",), ("sep",)) and inputs[1] == "token_type_ids"
        (folder / "vocab.txt").write_text("a")
        self.saved += 1
        if self.saved == 2:
            raise OSError(28, "No space left on device")


def test_both_networks_or_nothing(tmp_path):
    build = electra()
    params, vocabulary = wild(build), Full()
    with pytest.raises(UserError, match="out cannot be written .No space left on device."):
        published.export(build, params, tmp_path / "deep/out", vocabulary)
    assert vocabulary.saved == 2 and list((tmp_path / "deep").iterdir()) == []
    published.export(build, params, tmp_path / "deep/out", vocabulary)
    files = {p.relative_to(tmp_path / "deep") for p in (tmp_path / "deep").rglob("*") if p.is_file()}
    assert {str(p) for p in files} == {f"out/{net}/{name}" for net in build.factories for name in ("config.json", "model.safetensors", "vocab.txt")}
    for p in (tmp_path / "deep/out").rglob("*"):
        assert p.stat().st_mode & 0o444 == 0o444 and (not p.is_dir() or p.stat().st_mode & 0o111 == 0o111), p
    assert transformers.AutoConfig.from_pretrained(tmp_path / "deep/out/generator").pad_token_id == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="other exists: name a new folder"):
        published.export(build, params, tmp_path / "other", vocabulary)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.txt"]
