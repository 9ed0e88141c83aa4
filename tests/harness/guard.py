"""The tests cannot change the machine: a command that would is refused, recorded, and fails the test.

PATH begins with a folder of shims, which refuse commands of a shell or by name. An audit hook refuses
programs that the tests' process starts by an absolute path, or with another PATH. Tests marked `packaging`
have a private root and are free.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REFUSED = str.split(
    "apt apt-get apt-mark aptitude dpkg snap systemctl systemd-run udevadm sysctl modprobe insmod rmmod "
    "reboot shutdown poweroff halt nvpmodel jetson_clocks timedatectl hostnamectl usermod useradd groupadd "
    "sudo pkexec"
)
READS = {
    "systemctl": ("--version", "--root=", "show", "is-active", "is-enabled", "status"),
    "timedatectl": ("show",),
    "dpkg": ("--version", "--print-architecture"),
    "nvpmodel": ("-q",),
    "jetson_clocks": ("--show",),
}
"""Options and first words with which a program only reads, or works on another root."""
SYSTEMS = ("/usr/", "/bin/", "/sbin/", "/opt/", "/snap/")
PREFIX = "f5-refused-"
SHELLS = ("sh", "bash", "dash")
BY_PATH = re.compile(
    rf"(?:^|[\s;&|(])(?:/usr)?(?:/local)?/s?bin/({'|'.join(REFUSED)})(?=$|[\s;&|)])([^;&|]*)"
)
SHIM = """\
#!/bin/sh
{reads}
echo "{name} $*" >> {record}
echo "{name}: refused: no test touches the machine" >&2
exit 1
"""
READING = """\
case "$1" in {verbs}) exec {real} "$@";; esac
for word; do case "$word" in {options}) exec {real} "$@";; esac; done"""


class Guard:
    """The shims of a process, and the commands that they refused."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.record = self.folder / "record"
        self.path = os.pathsep.join(  # without the shims of the parent process
            entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if PREFIX not in entry
        )
        (self.folder / "bin").mkdir()
        for name in REFUSED:
            self._shim(name)
        self.active = False

    def _shim(self, name: str) -> None:
        real, reads = shutil.which(name, path=self.path), ""
        if name in READS and real:
            verbs = "|".join(word for word in READS[name] if not word.startswith("-"))
            options = (word for word in READS[name] if word.startswith("-"))
            patterns = "|".join(f"{word}*" if word.endswith("=") else word for word in options)
            reads = READING.format(verbs=verbs or "--", options=patterns or "--", real=real)
        shim = self.folder / "bin" / name
        shim.write_text(SHIM.format(name=name, reads=reads, record=self.record))
        shim.chmod(0o755)

    def start(self) -> None:
        self.active = True
        os.environ["PATH"] = f"{self.folder / 'bin'}{os.pathsep}{self.path}"
        sys.addaudithook(self.hear)

    def stop(self) -> None:
        self.active = False
        os.environ["PATH"] = self.path
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Refuse nothing within the block."""
        guarded, self.active, os.environ["PATH"] = os.environ["PATH"], False, self.path
        try:
            yield
        finally:
            self.active, os.environ["PATH"] = True, guarded

    def asked(self) -> list[str]:
        """Commands that were refused since the last call."""
        if not self.record.exists():
            return []
        commands = self.record.read_text().splitlines()
        self.record.unlink()
        return commands

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook. Raises PermissionError before the machine's own program is started."""
        if not self.active or event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
            return
        program, words, environment = arguments[0], arguments[1], arguments[-1]
        words = [words] if isinstance(words, (str, bytes, os.PathLike)) else list(words or ())
        refused = self.refuses(os.fsdecode(program), [os.fsdecode(word) for word in words], environment)
        if refused:
            with self.record.open("a") as record:
                record.write(f"{refused}\n")
            raise PermissionError(f"{refused}: refused: no test touches the machine")

    def refuses(self, program: str, words: Sequence[str], environment: Mapping[Any, Any] | None) -> str:
        """The command if it would change the machine; otherwise ""."""
        name = Path(program).name
        if name in SHELLS and "-c" in words[:-1]:
            found = BY_PATH.search(words[words.index("-c") + 1])
            return "" if found is None or reads(found[1], found[2].split()) else found[0].strip()
        if name not in REFUSED or reads(name, words[1:]):
            return ""
        if "/" not in program:
            program = shutil.which(name, path=os.pathsep.join(os.get_exec_path(environment))) or ""
        return " ".join((program, *words[1:])) if os.path.realpath(program).startswith(SYSTEMS) else ""


def reads(name: str, words: Sequence[str]) -> bool:
    """True if a command only reads, or works on another root."""
    known = READS.get(name, ())
    asked = [*words[:1], *(word for word in words if word.startswith("-"))]
    return any("".join(word.partition("=")[:2]) in known for word in asked)
