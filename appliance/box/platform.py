"""Identity of the machine (model, module, SoC, L4T, JetPack), and whether it is supported."""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.root import Root

SUPPORTED = "supported: a Jetson AGX Orin with JetPack 6.1 or a later 6, or with JetPack 7.2 or a later 7"
SOC = "tegra234"
TEGRA = re.compile(r"nvidia,(tegra\w+)")
OLDEST = {36: 4, 39: 2}
"""L4T major → oldest supported minor."""

JETPACKS = {
    (36, 3): "6.0",
    (36, 4, 0): "6.1",
    (36, 4, 3): "6.2",
    (36, 4, 4): "6.2.1",
    (36, 4, 7): "6.2.1",
    (36, 5, 0): "6.2.2",
    (36, 5, 2): "6.2.3",
    (38,): "7.0",
    (38, 4): "7.1",
    (39, 2, 0): "7.2",
    (39, 2, 1): "7.2.1",
    (39, 2, 2): "7.2.2",
    (35,): "5",
    (36,): "6",
    (39,): "7",
}
"""L4T release, or its first numbers, → JetPack."""


@dataclass(frozen=True)
class PlatformRefusal:
    """Reason why a box is not supported."""

    problem: str
    supported: str = SUPPORTED
    by_flashing: bool = False
    """True if flashing another JetPack on this module would help."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.supported}"


@dataclass(frozen=True)
class Platform:
    """Identity of a machine. Unknown fields are empty."""

    model: str = ""
    module: str = ""
    """Module, as "p3701-0005", the 64 GB production module."""
    soc: str = ""
    """Processor, as "tegra234", which is Orin."""
    l4t: tuple[int, ...] = ()
    """L4T release, as (36, 4, 3)."""
    jetpack: str = ""
    """JetPack, as "6.2"; as precise as the release file allows."""

    @property
    def is_jetson(self) -> bool:
        return bool(self.soc)

    @property
    def small(self) -> str:
        """Name of an Orin NX or Nano; "" for other modules."""
        if self.module.startswith("p3767"):
            return f"Jetson Orin NX or Orin Nano ({self.module})"
        # A carrier of another maker may name no module, but names the model.
        return next((f"Jetson Orin {name}" for name in ("NX", "Nano") if f"Orin {name}" in self.model), "")

    @property
    def release(self) -> str:
        """L4T in NVIDIA's spelling, as "R36.4.3"."""
        return "R" + ".".join(map(str, self.l4t)) if self.l4t else ""

    @property
    def refusal(self) -> PlatformRefusal | None:
        """Reason why the machine is not supported; None if it is."""
        if not self.is_jetson:
            return PlatformRefusal(f"not a Jetson: {paths.COMPATIBLE} names no Tegra")
        if self.soc != SOC:
            return PlatformRefusal(f"the processor is {self.soc}, not {SOC} (Orin)")
        if self.small:
            return PlatformRefusal(f"the module is {self.small}, which this appliance does not support")
        if not self.l4t:
            problem = f"{paths.RELEASE} is absent or names no release, so JetPack is unknown"
            return PlatformRefusal(problem, by_flashing=True)
        major, minor = (*self.l4t, 0)[:2]
        if minor >= OLDEST.get(major, 10**6):
            return None
        jetpack = f"JetPack {self.jetpack}" if self.jetpack else "a JetPack that this release does not know"
        problem = f"L4T {self.release} is {jetpack}, which is not supported"
        return PlatformRefusal(problem, f"{SUPPORTED}; flash the box with it", by_flashing=True)


def identify(root: Root) -> Platform:
    """Identify the machine. Does not raise."""
    compatible = tuple(part for part in (root.text(paths.COMPATIBLE) or "").split("\0") if part)
    l4t = parse_release(root.text(paths.RELEASE) or "")
    return Platform(
        model=(root.text(paths.MODEL) or "").strip("\0 \n"),
        module=_module(compatible),
        soc=next((match[1] for entry in compatible if (match := TEGRA.fullmatch(entry))), ""),
        l4t=l4t,
        jetpack=next((JETPACKS[l4t[:n]] for n in range(len(l4t), 0, -1) if l4t[:n] in JETPACKS), ""),
    )


def parse_release(text: str) -> tuple[int, ...]:
    """First line of the release file → L4T, as (36, 4, 3), or ()."""
    match = re.search(
        r"^#?\s*R([0-9]{1,4})\s*\(release\),\s*REVISION:\s*([0-9]{1,4}(?:\.[0-9]{1,4})*)", text, re.MULTILINE
    )
    return (int(match[1]), *map(int, match[2].split("."))) if match else ()


def _module(compatible: tuple[str, ...]) -> str:
    """Name of the module in the list of compatible names. It may follow the carrier board's."""
    numbers = [number for entry in compatible for number in re.findall(r"\bp\d{4}-\d{4}", entry)]
    modules = [number for number in numbers if number.startswith(("p3701", "p3767"))]
    return next(iter(modules), numbers[-1] if numbers else "")
