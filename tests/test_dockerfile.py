"""The developers' Dockerfile, as far as it can be read: Docker is not asked."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path


def instructions(root: Path) -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines joined."""
    text = (root / "scripts" / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(line.split()[0], line.partition(" ")[2]) for line in lines.splitlines() if line.strip()]


def test_all_that_is_copied_is_there(root: Path) -> None:
    copied = set()
    for name, arguments in instructions(root):
        if name == "COPY":
            *sources, target = shlex.split(arguments)
            assert target.startswith("/src/") and all((root / source).exists() for source in sources)
            copied |= set(sources)
    project = (root / "pyproject.toml").read_text("utf-8")
    for named in re.findall(r'^(?:readme = |license-files = \[)"(.+?)"', project, re.MULTILINE):
        assert named in copied


def test_all_that_is_installed_is_locked(root: Path) -> None:
    installs = [
        command.split("pip install", 1)[1]
        for name, arguments in instructions(root)
        if name == "RUN"
        for command in arguments.split("&&")
        if "pip install" in command
    ]
    assert len(installs) == 2
    locks, ours = map(shlex.split, installs)
    files = [after for option, after in itertools.pairwise(locks) if option == "-r"]
    assert {"--no-deps", "--only-binary"} <= set(locks) and "/tmp/cuda.txt" in files
    assert all((root / file).is_file() for file in files if file != "/tmp/cuda.txt")
    assert not [word for word in locks if re.search(r"[=<>]=", word)]
    # The checkout itself, built with what the lock has.
    assert ours[-2:] == ["--editable", "."] and {"--no-deps", "--no-build-isolation"} <= set(ours)
    dev = (root / "scripts/requirements/dev.txt").read_text("utf-8")
    for needed in ("hatchling", "editables"):
        assert re.search(rf"^{needed}==", dev, re.MULTILINE)
    assert re.search(r"^cuda-", (root / "scripts/requirements/ort-cuda.txt").read_text("utf-8"), re.MULTILINE)
