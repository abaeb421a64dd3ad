"""Published checkpoints on disk: config.json and tensors in safetensors (one file or an index of several)."""
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from ptmjax.types import UserError

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
        files = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    elif (folder / TENSORS).is_file():
        files = [TENSORS]
    else:
        raise UserError(f"{folder} has neither {TENSORS} nor {INDEX}: save the model with save_pretrained(..., safe_serialization=True)")
    return config, {name: x for file in files for name, x in read_tensors(folder / file).items()}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        found = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as e:
        raise UserError(f"{path} cannot be read ({e}): fetch it again") from e
    return {name: x if x.dtype.kind in "iub" else x.astype(np.float32) for name, x in found.items()}


def write(folder: Path, config: Mapping, tensors: Mapping[str, np.ndarray], more: Callable[[Path], None] = lambda folder: None) -> None:
    """Makes the folder, whole or not at all; `more` adds its files (the vocabulary's). One that exists is a UserError."""
    if folder.exists():
        raise UserError(f"{folder} exists: name a new folder")
    part = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        safetensors.numpy.save_file(dict(tensors), part / TENSORS, metadata={"format": "pt"})
        (part / TENSORS).chmod(0o644)  # the library makes it readable for the owner alone
        (part / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        more(part)
        part.chmod(0o755)
        part.rename(folder)
    except OSError as e:
        raise UserError(f"{folder} cannot be written ({e.strerror or e}): name another folder or make room") from e
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
