"""Stand-ins for jetson-stats' Python module: not installed, its service off, or green whatever happens."""

from __future__ import annotations

from pathlib import Path

KINDS = {
    "absent": """\
raise ModuleNotFoundError("No module named 'jtop'", name="jtop")
""",
    "inactive": """\
def jtop():
    raise RuntimeError("The jtop.service is not active. Please run:\\nsudo jtop --install-service")
""",
    # As jetson-stats after a `jetson_clocks --show` that failed: it compares nothing and finds no difference.
    "green": """\
import contextlib, types

__version__ = "7.2.2"


@contextlib.contextmanager
def jtop():
    yield types.SimpleNamespace(ok=lambda: True, jetson_clocks=True, nvpmodel="MAXN")
""",
}


def install(folder: Path, kind: str) -> Path:
    """Make the module of a kind; the folder to put on a Python's path."""
    module = folder / "python" / "jtop.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(KINDS[kind], encoding="utf-8")
    return module.parent
