"""Published checkpoints on disk: config.json and tensors in safetensors (one file or an index of several)."""
import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from ptmjax.types import UserError

FLOATS, INTEGERS = {"F64", "F32", "F16", "BF16"}, {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
TENSORS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def read_json(path: Path) -> dict:
    try:
        found = json.loads(path.read_text())
    except OSError as e:
        raise UserError(f"{path} cannot be read ({e.strerror or e}): name the folder of a published model, "
                        f"with {CONFIG} and {TENSORS}") from e
    except ValueError as e:
        raise UserError(f"{path} is not JSON ({e}): fetch it again") from e
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object: fetch it again")
    return found


def read(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """(config.json, tensors by name) of a folder; float16 and bfloat16 tensors come as float32."""
    config = read_json(folder / CONFIG)
    if (folder / INDEX).is_file():
        files = indexed(folder / INDEX)
    elif (folder / TENSORS).is_file():
        files = [TENSORS]
    else:
        raise UserError(f"{folder} has neither {TENSORS} nor {INDEX}: save the model with save_pretrained(..., safe_serialization=True)")
    return config, {name: x for file in files for name, x in read_tensors(folder / file).items()}


def indexed(path: Path) -> list[str]:
    """The files that an index names."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise UserError(f"{path} has no weight_map from tensors to files: fetch it again")
    return sorted(set(found.values()))


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, "np") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        if odd := sorted(set(kinds.values()) - FLOATS - INTEGERS):
            raise UserError(f"{path} has tensors of {', '.join(odd)}, which cannot be read: save the model in float32")
        found = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as e:
        raise UserError(f"{path} cannot be read ({e}): fetch it again") from e
    return {name: x.astype(np.float32) if kinds[name] in FLOATS else x for name, x in found.items()}


@contextlib.contextmanager
def new(folder: Path) -> Iterator[Path]:
    """A folder beside it, which takes its name at the end: whole or not at all. One that exists is a UserError."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists: name a new folder")
    part = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        yield part
        part.chmod(0o755)  # it was made for its owner alone
        part.rename(folder)
    except OSError as e:
        raise UserError(f"{folder} cannot be written ({e.strerror or e}): name another folder or make room") from e
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def write(folder: Path, config: Mapping, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes into the folder, which is made where it is missing."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(dict(tensors), folder / TENSORS, metadata={"format": "pt"})
    (folder / TENSORS).chmod(0o644)  # the library makes it readable for the owner alone
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
