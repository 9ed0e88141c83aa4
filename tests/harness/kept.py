"""Folders that take long to make, kept under out/kept for every test, process and Python.

    folder = kept("v1-base", ("tests.cuda.base",), write, blocks)

A folder's key is a hash of its makers: the text of the modules and of all their imports from this repository,
the locks of the workshop, and the arguments.
"""

import ast
import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "out" / "kept"
OURS = ("appliance", "export", "tests", "scripts")
LOCKS = tuple(ROOT / "scripts/requirements" / name for name in ("torch.txt", "export.txt", "device.txt"))
DONE = ".done"


def kept(
    name: str,
    modules: Sequence[str],
    make: Callable[..., object],
    *arguments: object,
    unused_s: float = 86_400,
) -> Path:
    """Return the folder that `make(folder, *arguments)` has filled, now or in an earlier run.

    `arguments` are part of the key by their repr. Folders of this name with another key are removed when they
    are `unused_s` older.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = KEPT / f"{name}-{key(modules, arguments)}"
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, *arguments)
            (folder / DONE).touch()
        os.utime(folder / DONE)
        _remove_stale(name, folder, unused_s)
    return folder


def _remove_stale(name: str, used: Path, unused_s: float) -> None:
    newest = (used / DONE).stat().st_mtime
    for other in KEPT.glob(f"{name}-{'[0-9a-f]' * 16}"):
        done = other / DONE
        if other != used and done.exists() and done.stat().st_mtime < newest - unused_s:
            shutil.rmtree(other, ignore_errors=True)


def key(modules: Sequence[str], arguments: Sequence[object] = ()) -> str:
    """Hash of the makers of a folder."""
    digest = hashlib.sha256(repr(arguments).encode())
    for path in (*LOCKS, *sources(*modules)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def sources(*modules: str) -> tuple[Path, ...]:
    """List the files of these modules and of their direct and indirect imports from this repository."""
    found: dict[Path, None] = {}
    waiting = list(modules)
    while waiting:
        for path in _files(waiting.pop()):
            if path not in found:
                found[path] = None
                waiting += _imports(path)
    return tuple(sorted(found))


def _files(module: str) -> Iterator[Path]:
    """The file of a module or package, and the __init__ of each package above it."""
    parts = module.split(".")
    if parts[0] not in OURS:
        return
    for size in range(1, len(parts) + 1):
        place = ROOT.joinpath(*parts[:size])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


def _imports(path: Path) -> Iterator[str]:
    """Names that a file imports, anywhere in it. A name after `from a import` may be a module of a."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
