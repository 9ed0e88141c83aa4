"""apt-mark: hold and unhold, in dpkg's status file."""

from __future__ import annotations

import re
import sys

from tests.fakes.jetson.machine import Machine

STATUS = "/var/lib/dpkg/status"


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("apt-mark", arguments)
    verb, *names = arguments
    wish = {"hold": "hold", "unhold": "install"}[verb]
    text = machine.path(STATUS).read_text(encoding="utf-8")
    for name in names:
        text, count = re.subn(
            rf"(^Package: {re.escape(name)}\nStatus: )\w+", rf"\g<1>{wish}", text, flags=re.M
        )
        if not count:
            print(f"E: Unable to locate package {name}", file=sys.stderr)
            return 100
        print(f"{name} set on hold." if verb == "hold" else f"Canceled hold on {name}.")
    machine.path(STATUS).write_text(text, encoding="utf-8")
    return 0
