"""The Debian package: wheels of the lock unpacked into a private folder, and what the system reads around it.

    /usr/lib/f5-appliance           the wheels, the daemon, scripts/ of root, configs/ as shipped
    /usr/bin                        appliance, and an f5-NAME for each of SCRIPTS
    /usr/lib/systemd/system         every unit and drop-in of systemd/
    /etc/f5-appliance               the configuration, a conffile

There is no virtual environment: the launchers put the folder in front of the system's packages, so that
TensorRT's binding, which JetPack installs, stays visible.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from appliance.box.tools import Ran, Tools
from scripts.installer import offline
from scripts.installer.actions import Failure, Tell
from scripts.installer.source import Source, is_unit
from scripts.installer.system import wanted_by
from scripts.installer.target import Content

NAME = "f5-appliance"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name → uname's."""
PYTHONS = {"6": "3.10", "7": "3.12"}
L4T = {"6": ("36.4", "37"), "7": ("39.2", "40")}
"""JetPack → oldest L4T, and the first that is too new."""
LIBRARY = "usr/lib/f5-appliance"
UNITS = "usr/lib/systemd/system"
CONFIG = "etc/f5-appliance/appliance.yaml"
SCRIPTS = ("clock-lock", "health", "quiet", "support-bundle", "upgrade")
"""Root's programs, standard library only; a command f5-NAME for each."""
CLOCKS = "f5-clocks.service"
BUILD_S = 900.0
BACK_OFF = re.compile(rb"^Restart(?:Steps|MaxDelaySec)=.*\n", re.MULTILINE)
"""Keys since systemd 254; JetPack 6 has 249 and Debian 12 has 252, which would warn at each reload."""
# The units name what scripts/install lays down; this goes when that goes.
PLACES = (
    ("/opt/f5-appliance/current/venv/bin/python", "/usr/bin/python3"),
    (" -m appliance ", " /usr/bin/appliance "),
    ("/opt/f5-appliance/current/systemd/README.md", "/usr/share/doc/f5-appliance/README.md"),
    ("/opt/f5-appliance/current/scripts", "/usr/lib/f5-appliance/scripts"),
    ("ReadOnlyPaths=-/opt/f5-appliance\n", ""),
    # A link, so that another bundle takes its place in one rename; made only where there is none.
    ("d       /var/lib/f5-appliance/bundle  0755  root          root          -\n",
     "L       /var/lib/f5-appliance/bundle  -     -             -             -    "
     "/usr/lib/f5-appliance/appliance/demo/bundle\n"),
)  # fmt: skip


@dataclass(frozen=True)
class Flavour:
    """For which systems a package is."""

    arch: str = "arm64"
    jetpack: str = ""
    """6 or 7; empty for a system that is no Jetson."""
    other_python: str = ""
    """Where there is no JetPack to say it."""

    @property
    def python(self) -> str:
        """e.g. 3.10."""
        return PYTHONS[self.jetpack] if self.jetpack else self.other_python

    @property
    def name(self) -> str:
        """e.g. jp6, py3.11."""
        return f"jp{self.jetpack}" if self.jetpack else f"py{self.python}"

    @property
    def depends(self) -> str:
        """Packages without which it does not run."""
        major, minor = self.python.split(".")
        wanted = [
            f"python3 (>= {self.python})",
            f"python3 (<< {major}.{int(minor) + 1})",
            f"libc6 (>= 2.{offline.GLIBC[self.python]})",
            "libstdc++6",
            "procps",
            "systemd",
        ]
        if self.jetpack and self.arch == "arm64":
            low, high = L4T[self.jetpack]
            wanted += [f"nvidia-l4t-core (>= {low})", f"nvidia-l4t-core (<< {high})"]
        return ", ".join(wanted)


def build(tools: Tools, python: str, source: Source, out: Path, flavour: Flavour, tell: Tell) -> Path:
    """Write the package into `out` and return its path. Raises Failure, OSError."""
    epoch = _epoch(tools, source)
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"{NAME}_{source.version}_{flavour.name}_{flavour.arch}.deb"
    with tempfile.TemporaryDirectory(prefix=".deb.", dir=out) as name:
        wheels, root = Path(name) / "wheels", Path(name) / "root"
        wheels.mkdir()
        machine = MACHINES[flavour.arch]
        tell(f"wheels for Python {flavour.python} on {machine}")
        offline.build_ours(tools, python, source, wheels)
        offline.download(
            tools, python, flavour.python, machine, wheels,
            offline.pins(tools, python, source, flavour.python, machine),
        )  # fmt: skip
        tell("laying out the package")
        _library(root / LIBRARY, sorted(wheels.glob("*.whl")), source)
        _system(root, source, flavour)
        _documents(root / "usr/share", source, flavour, epoch)
        _control(root, source, flavour)
        _stamp(root, epoch)
        tell("packing")
        # One thread: with more, xz cuts the data otherwise.
        environment = {**tools.environment, "SOURCE_DATE_EPOCH": str(epoch), "DPKG_DEB_THREADS_MAX": "1"}
        command = ("--root-owner-group", "-Zxz", "-z1", "--build", str(root), str(Path(name) / "new.deb"))
        _ran(Tools(tools.folders, environment).run("dpkg-deb", *command, timeout_s=BUILD_S))
        os.replace(Path(name) / "new.deb", package)
    return package


def _epoch(tools: Tools, source: Source) -> int:
    """Seconds since 1970 that every file of the package bears."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    ran = tools.run("git", "-C", str(source.folder), "log", "-1", "--format=%ct")
    if ran.code:
        raise Failure("this is no git checkout", "set SOURCE_DATE_EPOCH to the time of the release")
    return int(ran.output)


def _library(library: Path, wheels: Iterable[Path], source: Source) -> None:
    """Every wheel in one folder, and root's programs beside them. Raises Failure when two want one path."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                inside = _inside(item.filename)
                if inside and not item.is_dir():
                    _put(library / inside, archive.read(item), wheel.name)
    for script in SCRIPTS:
        _put(library / "scripts" / script, (source.folder / "scripts" / script).read_bytes(), mode=0o755)
    debian = source.folder / "scripts" / "debian"
    _put(library / "scripts" / "first-voices", (debian / "first-voices").read_bytes(), mode=0o755)
    # As shipped: f5-upgrade packs the version before again with it, whatever became of the conffile.
    _put(library / "configs" / "appliance.yaml", (source.folder / "configs/appliance.yaml").read_bytes())


def _inside(name: str) -> str:
    """Where a wheel's file goes in the library; empty for what is not imported."""
    if found := re.match(r"[^/]+\.data/(\w+)/", name):
        return name[found.end() :] if found[1] in ("purelib", "platlib") else ""
    # Packages' own tests: a third of their files, which nothing on the box imports.
    return "" if "/tests/" in name else name


def _system(root: Path, source: Source, flavour: Flavour) -> None:
    """What the system reads: units, users, folders, commands, the configuration."""
    for path in sorted((source.folder / "systemd").rglob("*")):
        inside = path.relative_to(source.folder / "systemd")
        if is_unit(path.name) or (path.suffix == ".conf" and len(inside.parts) == 2):
            # system.conf.d is systemd's own, beside the folder of units.
            folder = UNITS if inside.parts[0] != "system.conf.d" else "usr/lib/systemd"
            text = packaged(path)
            _put(root / folder / inside, text if flavour.jetpack == "7" else BACK_OFF.sub(b"", text))
    for kind in ("sysusers", "tmpfiles"):
        _put(
            root / f"usr/lib/{kind}.d/{NAME}.conf",
            packaged(source.folder / "systemd" / f"{NAME}.{kind}.conf"),
        )
    _put(root / CONFIG, (source.folder / "configs/appliance.yaml").read_bytes())
    _put(root / "usr/bin/appliance", (source.folder / "scripts/debian/appliance").read_bytes(), mode=0o755)
    for script in SCRIPTS:
        (root / f"usr/bin/f5-{script}").symlink_to(f"../lib/{NAME}/scripts/{script}")


def packaged(path: Path) -> bytes:
    """A file of systemd/ with the package's paths."""
    text = path.read_text("utf-8")
    for old, new in PLACES:
        text = text.replace(old, new)
    return text.encode()


def _documents(share: Path, source: Source, flavour: Flavour, epoch: int) -> None:
    folder = share / "doc" / NAME
    _put(folder / "README.md", (source.folder / "systemd" / "README.md").read_bytes())
    _put(folder / "copyright", (source.folder / "scripts/debian/copyright").read_bytes())
    entry = (
        f"{NAME} ({_version(source, flavour)}) stable; urgency=medium\n\n"
        "  * See CHANGELOG.md of this version.\n\n"
        f" -- {NAME} <{NAME}@localhost>  {formatdate(epoch)}\n"
    )
    _put(folder / "changelog.gz", gzip.compress(entry.encode(), 9, mtime=0))
    overrides = source.folder / "scripts/debian/lintian-overrides"
    _put(share / "lintian/overrides" / NAME, overrides.read_bytes())


def _version(source: Source, flavour: Flavour) -> str:
    return f"{source.version}+{flavour.name}"


def _control(root: Path, source: Source, flavour: Flavour) -> None:
    units = sorted(path for path in (root / UNITS).iterdir() if path.is_file())
    enabled = [path.name for path in units if wanted_by(Content(path.read_bytes()))]
    tensorrt = "python3-libnvinfer, libnvinfer10"
    words = {
        "VERSION": _version(source, flavour),
        "ARCH": flavour.arch,
        "SIZE": str(sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1024),
        "DEPENDS": flavour.depends,
        "RECOMMENDS": tensorrt if flavour.arch == "arm64" else "",
        "PYTHON": flavour.python,
        "ENABLED": " ".join(enabled),
        "ONCE": CLOCKS,
        "RESTARTED": " ".join(name for name in enabled if name != CLOCKS),
    }
    for name in ("control", "preinst", "postinst", "prerm", "postrm"):
        text = (source.folder / "scripts" / "debian" / name).read_text("utf-8")
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        text = text.replace("Recommends: \n", "")
        _put(root / "DEBIAN" / name, text.encode(), mode=0o644 if name == "control" else 0o755)
    _put(root / "DEBIAN/conffiles", f"/{CONFIG}\n".encode())
    sums = "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.relative_to(root).parts[0] not in ("DEBIAN", "etc")
    )
    _put(root / "DEBIAN/md5sums", sums.encode())


def _stamp(root: Path, epoch: int) -> None:
    """dpkg-deb only lowers times; a wheel's may be older or newer."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _put(path: Path, data: bytes, owner: str = "", *, mode: int = 0o644) -> None:
    if path.exists():
        raise Failure(f"{owner or path.name}: {path} is there already", "two packages want the same path")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _ran(ran: Ran) -> None:
    if ran.code:
        raise Failure(ran.told, "dpkg-deb is in the package dpkg")
