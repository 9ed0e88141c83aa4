"""nvbootctrl -t rootfs dump-slots-info: two bootable slots, in the format that public scripts read."""

from __future__ import annotations

from tests.fakes.jetson.machine import Machine


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("nvbootctrl", arguments)
    print("Current rootfs slot: A\nActive rootfs slot: A\nnum_slots: 2")
    for slot in (0, 1):
        print(f"slot: {slot},             retry_count: 3,             status: normal")
    return 0
