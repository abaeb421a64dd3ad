"""ptmjax: every pre-training system of the NLP literature as a point on a few orthogonal axes."""
from pathlib import Path

__version__ = "0.1.0"

_ROOT = Path(__file__).parents[1]
if not (Path(__file__).parent / "tasks").is_dir() and (_ROOT / "tasks" / "__init__.py").is_file():
    __path__.append(str(_ROOT))  # a checkout on sys.path, not installed: `ptmjax.tasks` is <root>/tasks


def gin_folder() -> Path:
    """Where the shipped gin files lie: inside the wheel, or beside the package in a checkout."""
    inside = Path(__file__).parent / "gin"
    return inside if inside.is_dir() else _ROOT / "gin"
