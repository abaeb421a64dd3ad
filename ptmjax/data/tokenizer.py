"""A vocabulary as tokenizer.json, which transformers' AutoTokenizer opens for any kind of model."""
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors


def unigram(proto: bytes, sentinels: Sequence[str]) -> tokenizers.Tokenizer | None:
    """What encodes as the SentencePiece model does, `sentinels` behind its pieces; None where the library cannot: other than unigram
    models, pieces that are always kept whole, spaces treated otherwise than by default."""
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf, which comes with TensorFlow

    held = sentencepiece_model_pb2.ModelProto.FromString(proto)
    trainer, normalizer = held.trainer_spec, held.normalizer_spec
    kinds = {held.SentencePiece.Type.Value(name) for name in ("NORMAL", "UNKNOWN", "CONTROL", "BYTE")}
    if (trainer.model_type != trainer.UNIGRAM or {piece.type for piece in held.pieces} - kinds or trainer.treat_whitespace_as_suffix
            or not (normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces and normalizer.escape_whitespaces)):
        return None
    unk = next(i for i, piece in enumerate(held.pieces) if piece.type == held.SentencePiece.UNKNOWN)
    pieces = [(piece.piece, piece.score) for piece in held.pieces] + [(name, 0.0) for name in sentinels]
    out = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unk, byte_fallback=trainer.byte_fallback))
    charsmap = [normalizers.Precompiled(normalizer.precompiled_charsmap)] if normalizer.precompiled_charsmap else []
    spaces = [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    out.normalizer = normalizers.Sequence([*charsmap, *spaces])
    out.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    out.decoder = decoders.Sequence([*[decoders.ByteFallback()] * trainer.byte_fallback, decoders.Metaspace(prepend_scheme="always")])
    return out


def write(folder: Path, tokenizer: tokenizers.Tokenizer, symbols: Mapping[str, str], special: Iterable[str], before: Sequence[str],
          after: Sequence[str], inputs: Sequence[str], between: Sequence[str] = (), **about: object) -> None:
    """tokenizer.json and tokenizer_config.json.

    symbols: pad, eos, ... -> written form. special: what is a symbol where it stands in a text. before, after: names of the
    symbols around a text; those that are not in `symbols` are left out. between: of those that a pair of texts has besides, before its
    second. inputs: of the arrays that the model reads; one without token types has the second text of type 0 as well. about: more of
    tokenizer_config.json.
    """
    first, last, more = ([symbols[name] for name in names if name in symbols] for names in (before, after, between))
    kind = int("token_type_ids" in inputs)
    tokenizer.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, *more, f"$B:{kind}", *(f"{piece}:{kind}" for piece in last)],
        special_tokens=[(piece, tokenizer.token_to_id(piece)) for piece in sorted({*first, *last, *more})])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": piece for name, piece in symbols.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_input_names": inputs}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | names | about, indent=1) + "\n")
