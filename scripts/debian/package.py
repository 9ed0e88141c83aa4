"""Builds the Debian package: the locks' wheels in a private folder, with units, commands and configuration.

    /usr/lib/f5-appliance           the wheels, the daemon, scripts/ of root, configs/ as shipped
    /usr/bin                        appliance, and an f5-NAME for each of COMMANDS
    /usr/lib/systemd/system         every unit and drop-in of systemd/
    /etc/f5-appliance               the configuration, a conffile

There is no virtual environment. The launchers put the folder before the system's packages, so TensorRT's
binding, which JetPack installs, stays visible.
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

from scripts.debian import wheels
from scripts.debian.wheels import GLIBC, ROOT, Failure, run

NAME = "f5-appliance"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name → uname's."""
PYTHONS = {"6": "3.10", "7": "3.12"}
L4T = {"6": ("36.4", "37"), "7": ("39.2", "40")}
"""JetPack → oldest L4T, and the first that is too new."""
LIBRARY = "usr/lib/f5-appliance"
UNITS = "usr/lib/systemd/system"
CONFIG = "etc/f5-appliance/appliance.yaml"
COMMANDS = ("backup", "clock-lock", "health", "quiet", "restore", "setup", "support-bundle", "upgrade")
"""Root's programs, which import the standard library only. Each becomes a command f5-NAME."""
AT_INSTALL = ("first-voices", "record-install")
CLOCKS = "f5-clocks.service"
OPTIONAL = ("f5-wyoming.service",)
"""Units that an operator may enable. An upgrade restarts them."""
BACK_OFF = re.compile(rb"^Restart(?:Steps|MaxDelaySec)=.*\n", re.MULTILINE)
"""Keys since systemd 254. JetPack 6 has 249 and Debian 12 has 252, which would warn at each reload."""
SOURCES = (".cpp", ".pxd", ".pxi", ".pyc", ".pyx")
"""Suffixes of files that no program reads."""
HERE = ROOT / "scripts/debian"
PAGES = {
    "systemd/README.md": "README.md",
    "appliance/gateway/README.md": "gateway.md",
    "appliance/rpc/README.md": "rpc.md",
    "scripts/debian/README.md": "package.md",
}
"""Page of this checkout → its name in /usr/share/doc/f5-appliance."""


@dataclass(frozen=True)
class Flavour:
    """Target system of a package."""

    arch: str = "arm64"
    jetpack: str = ""
    """"6" or "7"; "" for a system that is no Jetson."""
    other_python: str = ""
    """Python version, if no JetPack implies one."""

    @property
    def python(self) -> str:
        """Python version, as "3.10"."""
        return PYTHONS[self.jetpack] if self.jetpack else self.other_python

    @property
    def name(self) -> str:
        """Name, as "jp6" or "py3.11"."""
        return f"jp{self.jetpack}" if self.jetpack else f"py{self.python}"

    @property
    def locks(self) -> tuple[str, ...]:
        """Names of the locks whose wheels the package contains.

        A Jetson's has bindings of its driver's CUDA.
        """
        return ("device", "jetpack") if self.jetpack else ("device",)

    @property
    def version(self) -> str:
        """Version of pyproject.toml with the flavour, as "0.9.0+jp6". Raises Failure."""
        return f"{_version()}+{self.name}"

    @property
    def depends(self) -> str:
        """Packages without which it does not run."""
        packages = [
            f"python{self.python}",
            f"libc6 (>= 2.{GLIBC[self.python]})",
            "libstdc++6",
            "procps",
            "systemd",
        ]
        if self.jetpack and self.arch == "arm64":
            low, high = L4T[self.jetpack]
            packages += [f"nvidia-l4t-core (>= {low})", f"nvidia-l4t-core (<< {high})"]
        return ", ".join(packages)


def build(out: Path, flavour: Flavour, compression: str = "xz") -> Path:
    """Write the package into `out`; return its path. Raises Failure, OSError."""
    epoch = _epoch()
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"{NAME}_{_version()}_{flavour.name}_{flavour.arch}.deb"
    with tempfile.TemporaryDirectory(prefix=".deb.", dir=out) as name:
        fetched, root, new = Path(name) / "wheels", Path(name) / "root", Path(name) / "new.deb"
        fetched.mkdir()
        wheels.fetch(fetched, flavour.locks, flavour.python, MACHINES[flavour.arch])
        _library(root / LIBRARY, sorted(fetched.glob("*.whl")))
        _system(root, flavour)
        _name_python(root, flavour.python)
        _documents(root / "usr/share", flavour, epoch)
        _control(root, flavour)
        for path in (root, *root.rglob("*")):
            # dpkg-deb only lowers later times. Times from a wheel may be earlier.
            os.utime(path, (epoch, epoch), follow_symlinks=False)
        # A single thread: xz splits the data by the number of threads.
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "DPKG_DEB_THREADS_MAX": "1"}
        options = ("--root-owner-group", f"-Z{compression}", "-z1")
        run("dpkg-deb", *options, "--build", str(root), str(new), environment=environment)
        os.replace(new, package)
    return package


def _version() -> str:
    found = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise Failure(f"{ROOT} is no checkout: its pyproject.toml has no version")
    return found[1]


def _epoch() -> int:
    """Modification time of every file of the package, in Unix seconds."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    try:
        return int(run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    except Failure as failure:
        raise Failure(f"{failure}; set SOURCE_DATE_EPOCH to the time of the release") from failure


def _library(library: Path, fetched: Iterable[Path]) -> None:
    """Unpack every wheel into one folder, with root's programs.

    Raises Failure if two contain the same path.
    """
    for wheel in fetched:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                inside = _inside(item.filename)
                if inside and not item.is_dir():
                    _put(library / inside, archive.read(item))
    for script in COMMANDS:
        _put(library / "scripts" / script, (ROOT / "scripts" / script).read_bytes(), mode=0o755)
    for script in AT_INSTALL:
        _put(library / "scripts" / script, (HERE / script).read_bytes(), mode=0o755)
    # The configuration as shipped: f5-upgrade repacks the installed package with it.
    _put(library / "configs/appliance.yaml", (ROOT / "configs/appliance.yaml").read_bytes())


def _inside(name: str) -> str:
    """Path in the library of a file in a wheel; "" for files that are never imported."""
    if found := re.match(r"[^/]+\.data/(\w+)/", name):
        return name[found.end() :] if found[1] in ("purelib", "platlib") else ""
    # Tests of packages are a third of the files. numpy ships bytecode, cuda-python the sources of its
    # extensions.
    return "" if "/tests/" in name or name.endswith(SOURCES) else name


def _system(root: Path, flavour: Flavour) -> None:
    """Write units, users, folders, commands and the configuration."""
    systemd = ROOT / "systemd"
    for path in (*systemd.glob("*.service"), *systemd.glob("*.timer"), *systemd.glob("*.d/*.conf")):
        inside, text = path.relative_to(systemd), path.read_bytes()
        # system.conf.d configures systemd itself; its place is next to the folder of units.
        folder = UNITS if inside.parts[0] != "system.conf.d" else "usr/lib/systemd"
        _put(root / folder / inside, text if flavour.jetpack == "7" else BACK_OFF.sub(b"", text))
    for kind in ("sysusers", "tmpfiles"):
        _put(root / f"usr/lib/{kind}.d/{NAME}.conf", (systemd / f"{NAME}.{kind}.conf").read_bytes())
    _put(root / CONFIG, (ROOT / "configs/appliance.yaml").read_bytes())
    _put(root / "usr/bin/appliance", (HERE / "appliance").read_bytes(), mode=0o755)
    for script in COMMANDS:
        (root / f"usr/bin/f5-{script}").symlink_to(f"../lib/{NAME}/scripts/{script}")


def _name_python(root: Path, version: str) -> None:
    """Name the one Python that the wheels are for, because /usr/bin/python3 may be another."""
    one = f"({version.replace('.', ', ')})"
    first, launcher = root / LIBRARY / "appliance/__init__.py", root / "usr/bin/appliance"
    for path in (first, launcher, *root.glob(f"{LIBRARY}/scripts/*"), *root.glob(f"{UNITS}/*.service")):
        text = path.read_text("utf-8").replace("(3, 10), (3, 99)", f"{one}, {one}")
        path.write_text(text.replace("/usr/bin/python3 ", f"/usr/bin/python{version} "), "utf-8")


def _documents(share: Path, flavour: Flavour, epoch: int) -> None:
    folder = share / "doc" / NAME
    for page, name in PAGES.items():
        _put(folder / name, _linked(page).encode())
    _put(folder / "copyright", (HERE / "copyright").read_bytes())
    entry = (
        f"{NAME} ({flavour.version}) stable; urgency=medium\n\n"
        "  * See CHANGELOG.md of this version.\n\n"
        f" -- {NAME} <{NAME}@localhost>  {formatdate(epoch)}\n"
    )
    _put(folder / "changelog.gz", gzip.compress(entry.encode(), 9, mtime=0))
    _put(share / "lintian/overrides" / NAME, (HERE / "lintian-overrides").read_bytes())


def _linked(page: str) -> str:
    """A page whose links lead to the other PAGES as installed. Links to other files become plain words."""

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        path, mark, section = target.partition("#")
        if not path or ":" in path:
            return found[0]
        name = PAGES.get(os.path.normpath(os.path.join(os.path.dirname(page), path)))
        return f"[{words}]({name}{mark}{section})" if name else words

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, (ROOT / page).read_text("utf-8"))


def _control(root: Path, flavour: Flavour) -> None:
    """Write DEBIAN/: control, maintainer scripts, conffiles, md5sums."""
    units = sorted(path for path in (root / UNITS).iterdir() if path.is_file())
    installable = [path.name for path in units if "\nWantedBy=" in path.read_text("utf-8")]
    enabled = [name for name in installable if name not in OPTIONAL]
    words = {
        "VERSION": flavour.version,
        "ARCH": flavour.arch,
        "SIZE": str(sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1024),
        "DEPENDS": flavour.depends,
        # If these were recommended, apt would install nothing on a box without a network, which cannot know
        # them. libespeak-ng1 is for bundles that read English as phones.
        "SUGGESTS": "libespeak-ng1" + ", python3-libnvinfer, libnvinfer10" * (flavour.arch == "arm64"),
        "PYTHON": flavour.python,
        "ENABLED": " ".join(enabled),
        "OPTIONAL": " ".join(OPTIONAL),
        "INSTALLABLE": " ".join(installable),
        "ONCE": CLOCKS,
        "RESTARTED": " ".join(name for name in installable if name != CLOCKS),
    }
    for name in ("control", "postinst", "prerm", "postrm"):
        text = (HERE / name).read_text("utf-8")
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        _put(root / "DEBIAN" / name, text.encode(), mode=0o644 if name == "control" else 0o755)
    _put(root / "DEBIAN/conffiles", f"/{CONFIG}\n".encode())
    files = sorted(path for path in (root / "usr").rglob("*") if path.is_file() and not path.is_symlink())
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    _put(root / "DEBIAN/md5sums", "".join(sums).encode())


def _put(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    if path.exists():
        raise Failure(f"two wheels contain the same path: {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
