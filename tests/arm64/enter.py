"""Run a program of an arm64 root under qemu, in private namespaces. The host's binfmt registry does not
change.

    python -m tests.arm64.enter ROOT PROGRAM...

Needs root and Linux 6.7: since that version each user namespace has its own binfmt registry.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

QEMU = "/usr/bin/qemu-aarch64-static"
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    # The nearest to Orin's Cortex-A78AE: the same dot products and float16, no SVE.
    "QEMU_CPU": "cortex-a76",
}
CORE = Path(__file__).with_name("cpuinfo.txt").read_text("utf-8")
"""Text of an Orin's /proc/cpuinfo. ONNX Runtime fails at import if it reads the text of an x86 host."""
ELF_OF_ARM = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = Path(__file__).with_name("enter.sh").read_text("utf-8")
CLONE_NEWUSER = 0x10000000


def map_every_id() -> None:
    """Enter a user namespace whose ids are the host's: packages create users and change owners in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent, (entered, enter) = os.getpid(), os.pipe()
    if (outside := os.fork()) == 0:
        os.read(entered, 1)
        for ids in ("uid_map", "gid_map"):
            Path(f"/proc/{parent}/{ids}").write_text("0 0 65536\n")
        os._exit(0)
    if libc.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(enter, b".")
    _, status = os.waitpid(outside, 0)
    if status:
        raise OSError("the ids of the user namespace cannot be mapped")
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)


def main(root: str, *program: str) -> None:
    cores = "".join(map(CORE.format, range(os.cpu_count() or 1)))
    Path(root, "run/cpuinfo").write_text(cores)
    map_every_id()
    # Opened before the chroot, because the path lies outside of the root.
    qemu = f":qemu-aarch64:M::{ELF_OF_ARM}:{MASK}:{QEMU}:F"
    own = ("unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child", "--net")
    command = (*own, "sh", "-c", ENTER, "sh", root, qemu, *program)
    os.execvpe(command[0], command, ENVIRONMENT)


if __name__ == "__main__":
    main(*sys.argv[1:])
