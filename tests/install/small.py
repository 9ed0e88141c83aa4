"""A checkout and an offline folder that are small: an application that pretends, wheels made on the spot."""

from __future__ import annotations

import ensurepip
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from appliance.box.system import Box
from appliance.box.tools import Tools
from scripts.installer import environment, releases, switching, wheels
from scripts.installer.installation import Installation, Options
from scripts.installer.source import Source
from scripts.installer.target import Target

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.uname().machine
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
COPIED = (
    "appliance/box",
    "configs/appliance.yaml",
    "scripts/__init__.py",
    "scripts/installer",
    "scripts/switch",
    "scripts/uninstall",
    "systemd",
)
HEALTH = """\
#!{python} -IS
import json, os, pathlib, sys
root = pathlib.Path(os.environ["F5_SYSROOT"])
if "--set-baseline" in sys.argv:
    (root / "var/lib/f5-appliance/journal/baseline.json").write_text("{{}}")
    sys.exit(0)
level = {level!r}
findings = [{{"check": "daemon", "level": level, "value": "ready" if level == "PASS" else "wedged"}}]
print(json.dumps({{"findings": findings}}) if "--json" in sys.argv else f"{{level}}  daemon")
sys.exit(0 if level == "PASS" else 2)
"""
SCRIPT = "#!/bin/sh\nexit 0\n"
LIBRARY = {"tinylib.py": b"answer = 42\n"}
COMMAND_LINE = '''\
"""As much of the real command line as the install uses."""
import os, pathlib, sys, wave
voices = pathlib.Path(os.environ["F5_SYSROOT"], "var/lib/f5-appliance/voices")
words = sys.argv[1:]
if words[:2] == ["voices", "list"]:
    for voice in sorted(voices.iterdir()):
        print(f"{voice.name:<24}  3.0 s  ...")
elif words[:2] == ["voices", "add"]:
    assert pathlib.Path(words[3]).is_file() and words[4] == "--transcript"
    (voices / words[2]).write_text(words[5])
elif words[0] == "say":
    with wave.open(words[words.index("--out") + 1], "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(24000)
        out.writeframes(b"\\x01\\x02" * 24000)
'''
BUNDLE_READER = """\
import hashlib
class Refused(Exception): pass
def read(folder):
    digest = hashlib.sha256((folder / "weights").read_bytes()).hexdigest()
    if digest not in (folder / "manifest.yaml").read_text():
        raise Refused(f"{folder.name}: weights: sha256 differs")
"""
TONE = "import pathlib, sys\npathlib.Path(sys.argv[1]).write_bytes(b'RIFF')\n"


def checkout(
    folder: Path, version: str = "0.1.0", *, health: str = "PASS", config: str | None = None
) -> Source:
    """A checkout of that version, whose health finds the daemon at that level."""
    for name in COPIED:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    files = {
        "pyproject.toml": f'[project]\nname = "f5-appliance"\nversion = "{version}"\n',
        "appliance/__init__.py": f'"""Version {version}."""\n',
        "appliance/__main__.py": COMMAND_LINE,
        "appliance/contract/__init__.py": "",
        "appliance/contract/bundle.py": BUNDLE_READER,
        "scripts/requirements/device.txt": "# Pretends.\ntinylib==1.0\n",
        "scripts/health": HEALTH.format(python=sys.executable, level=health),
        "scripts/clock-lock": SCRIPT,
        "scripts/support-bundle": SCRIPT,
        "scripts/tone": TONE,
    }
    if config is not None:
        files["configs/appliance.yaml"] = config
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        if text.startswith("#!"):
            place.chmod(0o755)
    bundle(folder / "tests/tiny/bundle")
    return Source(folder)


def bundle(folder: Path, weights: bytes = b"noise") -> Path:
    """A bundle as the pretended reader wants it."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(weights)
    (folder / "manifest.yaml").write_text(f"files:\n  weights: {hashlib.sha256(weights).hexdigest()}\n")
    return folder


def offline(
    folder: Path,
    source: Source,
    pythons: tuple[str, ...] = (PYTHON,),
    library: Mapping[str, bytes] = LIBRARY,
) -> wheels.Wheels:
    """The offline folder of such a checkout; pip's wheel is the one that Python itself brings.

    `library` is what the one wheel of the lock holds.
    """
    folder.mkdir(parents=True)
    brought = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not brought:
        pytest.skip(
            "this Python brings no pip wheel (ensurepip), which the small offline folder is made with"
        )
    shutil.copy(brought[0], folder)
    _wheel(folder, "tinylib", "1.0", library)
    code = {
        str(path.relative_to(source.folder)): path.read_bytes()
        for path in sorted((source.folder / "appliance").rglob("*.py"))
    }
    _wheel(folder, "f5_appliance", source.version, code, "appliance = appliance.cli:main")
    return wheels.write(folder, pythons, MACHINE)


def _wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], script: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        texts[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    contents = {**files, **{path: text.encode() for path, text in texts.items()}}
    record = "".join(f"{path},,\n" for path in (*contents, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, data in {**contents, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, data)


def unpack(_: Tools, python: str, venv: Path, __: Source, made: wheels.Wheels | None) -> None:
    """What environment.build does, without pip: for tests of what comes after."""
    assert made is not None
    subprocess.run([python, "-I", "-m", "venv", "--system-site-packages", "--without-pip", venv], check=True)
    for name in made.files:
        if not name.startswith("pip-"):
            with zipfile.ZipFile(made.folder / name) as wheel:
                wheel.extractall(next(venv.glob("lib/python*/site-packages")))


class Workshop:
    """Checkouts with their wheels, and releases that are built once and copied after that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._built: dict[tuple[str, ...], Path] = {}

    def checkout(self, version: str = "0.1.0", **traits: str) -> tuple[Source, Path]:
        """A checkout and its offline folder."""
        folder = self.folder / "-".join((version, *(f"{len(value)}{value[:9]}" for value in traits.values())))
        if not folder.exists():
            offline(folder / "wheels", checkout(folder / "checkout", version, **traits))
        return Source(folder / "checkout"), folder / "wheels"

    def install(
        self,
        box: Box,
        version: str = "0.1.0",
        *,
        live: bool = False,
        gate: switching.Gate | None = None,
        options: Options | None = None,
        **traits: str,
    ) -> tuple[int, list[str]]:
        """Install a version, its release from the store when it was built before; exit status and lines."""
        source, folder = self.checkout(version, **traits)
        options = options or Options(offline=folder, python=sys.executable)
        target = Target(box, staged=not live)
        lines: list[str] = []
        installation = Installation(target, source, options, lines.append, gate or switching.Start(30.0))
        # What was only unpacked is no release to one who wants the real thing.
        built_by = environment.build.__module__
        key = (str(box.root.text("/etc/nv_tegra_release")), str(source.folder), built_by)
        place = target.at(releases.RELEASES) / version
        new = not place.exists()
        if new and key in self._built and not options.dry_run:
            shutil.copytree(self._built[key], place, symlinks=True)
        code = installation.run()
        if new and key not in self._built and place.exists():
            self._built[key] = self.folder / f"built-{len(self._built)}"
            shutil.copytree(place, self._built[key], symlinks=True)
        return code, lines


def everything(folder: Path) -> dict[str, tuple[int, int, int, int, str]]:
    """Every file, link and folder: mode, owner, group, time of change in ns, and content's hash."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        entry = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content)
        found[str(path.relative_to(folder))] = entry
    return found
