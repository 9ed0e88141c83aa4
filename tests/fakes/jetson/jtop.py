"""Stand-ins for jetson-stats' Python module: not installed, its service off, or green whatever happens."""

from __future__ import annotations

from pathlib import Path

ABSENT = """\
raise ModuleNotFoundError("No module named 'jtop'", name="jtop")
"""
COMMON = """\
__version__ = "7.2.2"


class JtopException(Exception):
    pass


class jtop:
    def __init__(self, interval=0.5):
        self.interval = interval

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *ended):
        self.close()
        return False

    def close(self):
        pass

"""
INACTIVE = (
    COMMON
    + """\
    def start(self):
        raise JtopException("The jtop.service is not active. Please run:\\nsudo jtop --install-service")
"""
)
# As jetson-stats after a `jetson_clocks --show` that failed: it compares nothing and finds no difference.
GREEN = (
    COMMON
    + """\
    def start(self):
        pass

    def ok(self, spin=False):
        return True

    @property
    def jetson_clocks(self):
        return Clocks()

    @property
    def nvpmodel(self):
        return Mode()


class Clocks:
    def __bool__(self):
        return True


class Mode:
    def __str__(self):
        return "MAXN"
"""
)
KINDS = {"absent": ABSENT, "inactive": INACTIVE, "green": GREEN}


def install(folder: Path, kind: str) -> Path:
    """Make the module of a kind; the folder to put on a Python's path. Raises ValueError naming the kinds."""
    if kind not in KINDS:
        raise ValueError(f"no jtop {kind!r}, only {', '.join(KINDS)}")
    package = folder / "python" / "jtop"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(KINDS[kind], encoding="utf-8")
    return package.parent
