"""Redaction by allow-lists: only texts that are certainly harmless leave the box.

Free text keeps technical words only and shows the rest as `…`, so nothing remains that a person typed, and no
name. A last pass, `scrubber`, removes identifiers of this box that passed nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from appliance.box import paths
from appliance.box.system import Box

WITHHELD = "…"
WORDS = frozenset(Path(__file__).with_name("words.txt").read_text("utf-8").split())
"""Words that stay in free text. There are no names in it, and no articles or pronouns, which would make
sentences readable.

A user, a host or a voice with such a name is not removed, because the name identifies nobody.
"""
TRADE = re.compile(
    r"(?:[A-Z]\w*(?:Error|Exception|Fault|Interrupt|Warning))"  # Python's and ours
    r"|(?:CUDA|CUDNN|NVPM|NVMAP|GPU|EMC|CPU|TRT|ORT|RAM|INFO|WARNING|ERROR|DEBUG|CRITICAL|OOM)[A-Z0-9_]{0,24}"
    r"|(?:CORE|CV|DLA|GR3D|NV(?:DEC|DLA|ENC|JPG)|OFA|PVA|SOC|SWAP|TPC|VDD|VDDQ|VIC|VIN)(?:[0-9_][A-Z0-9_]{0,24})?"
    r"|(?:MODE_)?\d{1,3}W|MAXN(?:_SUPER)?|(?:cpu|gpu|soc|cv|oc|tj)\d{0,2}(?:–cpu\d{1,2})?|hwmon\d+_pwm\d+"
    r"|(?:appliance\.[a-z_.]+)"
    r"|(?:f5-(?:appliance|gateway|wyoming|clocks|clocks-check|health|guard)\.(?:service|timer))"
    r"|(?:(?:nvpmodel|nvpower|nvfancontrol|jtop)(?:\.service)?|jetson_clocks)"
    r"|(?:SIG[A-Z]{3,6}|[AB])"  # A and B are slots
)
UNITS = r"(?:%|s|ms|kB|MB|MiB|GiB|kHz|Hz|MHz|°C|C|W|mW|x\d{1,4}MB)?"
NUMBER = re.compile(rf"-?\d{{1,6}}(?:\.\d{{1,6}})?{UNITS}")
READING = re.compile(rf"-?\d{{1,10}}(?:\.\d{{1,6}})?{UNITS}")
"""NUMBER in the output of NVIDIA's tools, which print frequencies in Hz."""
SYSFS = re.compile(r"/sys/(?:devices/(?:system/cpu|platform|gpu\.0)|kernel/nvpmodel|class/devfreq)[\w.@/-]*")
PIECES = re.compile(r"[=@:/,|\[\]()]+")
"""Separators of words and numbers in a token, as in `MinFreq=729600` and `[3%@729,off]`."""
EDGES = "\"'`{}<>;.!?"
JOURNAL = re.compile(r"\[\s*(\d+\.\d+)\]\s+\S+\s+([\w.@-]+?)(?:\[\d+\])?:\s(.*)")
"""A line of `journalctl -o short-monotonic`: time, host, name, message."""
KERNEL = re.compile(
    r"(?:soctherm|tegra\d*-soctherm|tegra-soctherm|thermal|cpu-throttle|nvgpu|nvmap|NvMap|NVRM|"
    r"17000000\.\w+|bpmp|cpufreq|Out of memory|oom-kill|oom_reaper|EXT4-fs|nvme)\b.*"
)
KERNEL_NAMES = (
    re.compile(r"()\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b()"),
    # Greedy: a name may contain a bracket.
    re.compile(r"(\bprocess \d+ \().*(\))"),
    # A name in the kernel has at most 15 bytes and may contain colons, so this matches up to the end of a
    # word.
    re.compile(r"(\bcomm:? ).{1,15}(?!\w)()"),
    re.compile(r"(\b(?:cpuset|\w*memcg|task)=).*?()(?=,(?:mems_allowed=|global_oom|\w*memcg=|task=|pid=)|$)"),
)
"""Identifiers of disks, processes and users in kernel lines. The two groups of a match stay."""

SHIPPED = Path(__file__).resolve().parents[3] / "configs" / "appliance.yaml"
"""File with every key of the configuration. Only these keys are shown, and only values of a known kind."""
SHOWN_VALUE = re.compile(
    r"-?\d{1,12}(?:\.\d{1,6})?|true|false|(?:MODE_)?\d{1,3}W|MAXN(?:_SUPER)?"
    r"|openvino|ort-cpu|ort-cuda|tensorrt|upstream|adaptive|low_latency|drop|name|speak|debug|info|warning|error"
    r"|/run/f5-appliance/(?:grpc|admin)\.sock|(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\]):\d{1,5}"
)
"""Pattern of values that the bundle shows. It shows the values of SHIPPED, too."""
MAC = re.compile(r"\b[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}\b")
IPV4 = re.compile(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}\b")
IPV6 = re.compile(r"\b(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}\b|\bfe80:[0-9A-Fa-f:]+")
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b")
HOME = re.compile(r"/(?:home|media|mnt)/[^\s\"']+")


def outline(message: str, number: re.Pattern[str] = NUMBER) -> str:
    """The technical words of a message, and the numbers after them."""
    shown: list[str] = []
    for token in message.split():
        pieces = [piece for part in PIECES.split(token) if (piece := part.strip(EDGES))]
        words = [piece for piece in pieces if TRADE.fullmatch(piece) or piece.lower() in WORDS]
        others = set(pieces).difference(words)
        follows = bool(words) or (bool(pieces) and bool(shown) and shown[-1] != WITHHELD)
        if SYSFS.fullmatch(token.rstrip(":")) or (follows and all(map(number.fullmatch, others))):
            shown.append(token)
        elif not shown or shown[-1] != WITHHELD:
            shown.append(WITHHELD)
    return " ".join(shown)


def outlined(value: Any) -> Any:
    """JSON value with an outline in place of each text. Names of keys stay."""
    if isinstance(value, str):
        return outline(value, READING)
    if isinstance(value, Mapping):
        return {name: outlined(one) for name, one in value.items()}
    return [outlined(one) for one in value] if isinstance(value, (list, tuple)) else value


def journal(text: str) -> str:
    """Times, and outlines of names and messages, without host names."""
    matches = filter(None, map(JOURNAL.match, text.splitlines()))
    return "".join(f"[{line[1]}] {outline(line[2])}: {outline(line[3])}\n" for line in matches)


def kernel(text: str) -> str:
    """Lines of the kernel about heat, current, GPU, memory and disks."""
    lines = []
    for line in text.splitlines():
        if (match := JOURNAL.match(line)) and KERNEL.match(message := match[3]):
            for pattern in KERNEL_NAMES:
                message = pattern.sub(rf"\1{WITHHELD}\2", message)
            lines.append(f"[{match[1]}] {message}")
    return "\n".join(lines) + "\n"


def configuration(text: str) -> str:
    """Known keys and values of a configuration, and `…` for others. Raises OSError."""
    shipped = {(section, key): value for section, key, value in _lines(SHIPPED.read_text("utf-8"))}
    lines = []
    for section, key, value in _lines(text):
        if not key:
            shown = section if (section, "") in shipped else WITHHELD
            lines.append(f"{shown}:" + (f" {WITHHELD}" if value not in ("", "{}") else ""))
        elif (section, key) in shipped:
            is_shown = value == shipped[section, key] or SHOWN_VALUE.fullmatch(value)
            lines.append(f"  {key}: {value if is_shown else WITHHELD}")
        else:
            lines.append(f"  {WITHHELD}")
    return "\n".join(lines) + "\n"


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, key, value. A section's own line has no key; a line of another form is `…`."""
    section = ""
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        match = re.fullmatch(r"(\s*)([A-Za-z_]\w*):(?:\s+(.*))?", line)
        if match and not match[1]:
            section = match[2]
            yield section, "", (match[3] or "").strip()
        elif line:
            yield section, match[2] if match else WITHHELD, (match[3] or "").strip() if match else ""


def scrubber(box: Box) -> Callable[[str], str]:
    """Function that removes the identifiers of this box; see `replacing`. Does not raise."""
    secrets = {secret.strip() for secret in _identities(box)}
    return replacing(secret for secret in secrets if len(secret) > 2 and secret.lower() not in WORDS)


def replacing(secrets: Iterable[str]) -> Callable[[str], str]:
    """Function that replaces addresses and `secrets` by `…`."""
    literals = (rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in sorted(secrets, key=len, reverse=True))
    patterns = (MAC, IPV6, IPV4, EMAIL, HOME, *map(re.compile, literals))

    def scrub(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(WITHHELD, text)
        return text

    return scrub


def _identities(box: Box) -> Iterator[str]:
    """Names that identify the box and its users: hosts, serial numbers, accounts, addresses, voices."""
    root = box.root
    files = (paths.ETC_HOST_NAME, paths.MACHINE_ID, paths.SERIAL_NUMBER, paths.HOST_NAME)
    yield from ((root.text(path) or "").strip("\0") for path in files)
    for fields in (line.split(":") for line in (root.text(paths.USERS) or "").splitlines()):
        if len(fields) > 2 and fields[2].isdecimal() and 1000 <= int(fields[2]) < 60_000:
            yield fields[0]
    for interface in root.names(paths.INTERFACES):
        yield root.text(f"{paths.INTERFACES}/{interface}/address") or ""
    for voice in root.names(paths.VOICES):
        yield voice
        place = f"{paths.VOICES}/{voice}"
        styles = (f"{place}/styles/{style}/style.yaml" for style in root.names(f"{place}/styles"))
        for record in (f"{place}/voice.yaml", *styles):
            # Names and notes in a record are values of its lines. All that are long enough count.
            values = re.findall(r"^(?:\w+:|\s+|- )\s*(.+)$", root.text(record) or "", re.MULTILINE)
            yield from (value.strip(" '\"") for value in values if len(value) > 7)
