"""The daemon's configuration: YAML → frozen dataclasses, which are the only place of the defaults.

`configs/appliance.yaml` explains every key; strings under fields add what it does not say. `--set
section.key=value` overrides the file.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from appliance.addresses import LOOPBACK_GRPC
from appliance.box.clocks.modes import MODE_LETTERS, MODE_NAME
from appliance.contract.limits import MAX_GAIN_DB, MAX_GUIDANCE, MAX_NFE
from appliance.contract.yaml_text import parse_yaml
from appliance.errors import ConfigError
from appliance.fields import AtLeast, Between, Count, Ranged, check_path, from_mapping, shown

if TYPE_CHECKING:
    from appliance.contract.sampler import Sampler

logger = logging.getLogger(__name__)

LOOPBACK_METRICS = "127.0.0.1:9464"
LOOPBACK_HTTP = "127.0.0.1:8880"
LOOPBACK_WYOMING = "127.0.0.1:10200"
MIB = 1 << 20
LEAST_PIECE_S = 15.0
"""Seconds for the longest reference and some speech after it."""
Target = Annotated[float, Between(0.0, 60.0)]
Hour = Annotated[float, Between(0.0, 3_600.0)]
"""Seconds."""
HOST = r"\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
NAME = re.compile(rf"(?:{HOST})\.?", re.IGNORECASE | re.ASCII)
ADDRESS = re.compile(r"(?:\[[^\[\]\s]+\]|[^\[\]:/\s\0]+):[0-9]{1,5}")
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://(?:{HOST})(?::[0-9]+)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class BundleConfig:
    path: Path = Path("/var/lib/f5-appliance/bundle")
    verify: bool = True


@dataclass(frozen=True)
class EngineConfig(Ranged):
    backend: Literal["auto", "tensorrt", "ort-cuda", "ort-cpu"] = "auto"
    """auto: the first of tensorrt, ort-cuda and ort-cpu that this machine has and the bundle passes its test
    on.
    """
    cache: Path = Path("/var/cache/f5-appliance/engines")
    threads: Annotated[int, AtLeast(0)] = 0
    lanes: Annotated[int, Between(1, 64)] = 8
    spinning: bool = False
    longest_s: Annotated[float | None, Between(LEAST_PIECE_S, 3_600.0)] = None
    idle_unload_s: Annotated[float | None, AtLeast(1)] = None
    """Seconds without a request after which the engine frees its memory; None: never."""


USUAL_NFE = 7


@dataclass(frozen=True)
class SynthesisConfig(Ranged):
    """Defaults of a synthesis request, and the range that it may ask for."""

    nfe: Annotated[int | None, Between(1, MAX_NFE)] = None
    """Default: USUAL_NFE, or the nearest number of steps that the bundle allows."""
    guidance: Annotated[float | None, Between(0.0, MAX_GUIDANCE)] = None
    seed: Annotated[int | None, Between(0, 2**64 - 1)] = None
    unary_segmentation: Literal["upstream", "low_latency"] = "upstream"
    """A CPU reads upstream, here and below, as low_latency for a text whose longest piece is over 8 s."""
    stream_segmentation: Literal["upstream", "low_latency", "adaptive"] = "adaptive"
    """adaptive: upstream if the first audio is in time and the request has no seed, else low_latency."""
    max_text_characters: Annotated[int, Between(1, 100_000)] = 4_096
    max_nfe: int = 32
    max_audio_s: Annotated[float, Between(1.0, 3_600.0)] = 360.0
    max_work_s: Annotated[float, Between(1.0, 3_600.0 * MAX_NFE)] = 3_600.0
    """Limit of seconds of speech × steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Between(self.nfe or 1, MAX_NFE).check("max_nfe", self.max_nfe)

    def steps_with(self, sampler: Sampler) -> int:
        """Steps of requests that name none. The caller checks that the sampler allows them."""
        return sampler.nearest(USUAL_NFE) if self.nfe is None else self.nfe


@dataclass(frozen=True)
class LanguageRow:
    """Voice for texts in one language."""

    voice: str
    style: str = ""
    """"" for the voice's own recording."""
    bundle: Path | None = None
    """Bundle that speaks the language, loaded as a secondary one; None: `bundle.path`."""


@dataclass(frozen=True)
class ChannelRow(Ranged):
    """Rules for the users of one channel."""

    announce_pause_s: Hour = 60.0
    """Time within which `announce` names the same user once."""
    silent: tuple[str, ...] = ()
    """Users whose requests are not spoken."""


@dataclass(frozen=True)
class TextConfig:
    links: Literal["name", "drop"] = "name"
    emoji: Literal["name", "drop"] = "name"
    directions: Literal["drop", "speak"] = "drop"
    code: Literal["name", "drop"] = "name"
    """`name` says one word for a block and reads inline code; `drop` leaves both out."""
    language: str = ""
    """Code of a language that precedes the bundle's own, as "de"."""
    languages: dict[str, LanguageRow] = field(default_factory=dict)
    """Language code → row, for requests that leave the voice to their text."""
    channels: dict[str, ChannelRow] = field(default_factory=dict)
    """Channel → row; "" for requests without a channel."""


@dataclass(frozen=True)
class AudioConfig(Ranged):
    loudness_lufs: Annotated[float | None, Between(-40.0, -10.0)] = -18.0
    """null: the level of the model's output."""
    channel_gain_db: dict[str, Annotated[float, Between(-MAX_GAIN_DB, MAX_GAIN_DB)]] = field(
        default_factory=dict
    )
    marked: bool = True
    watermark: Path | None = None
    """Folder from `python -m export watermark`; None: no watermark in the samples."""


@dataclass(frozen=True)
class VoicesConfig(Ranged):
    folder: Path = Path("/var/lib/f5-appliance/voices")
    cache: Path = Path("/var/cache/f5-appliance")
    memory_entries: Count = 64
    max_reference_bytes: Count = 12 * MIB


@dataclass(frozen=True)
class CacheConfig(Ranged):
    phrases_bytes: Annotated[int, Between(0, 1 << 34)] = 64 * MIB
    drawn_seeds: bool = False


@dataclass(frozen=True)
class SchedulerConfig(Ranged):
    realtime_s: Target = 0.3
    """Target for the first audio, or 1.4 times the request's time on an idle box if that is longer."""
    high_s: Target = 0.45
    normal_s: Target = 0.6
    patience_s: Hour = 60.0
    """Longest delay beyond its target of a request without a serial channel and without `queue_timeout`."""
    queue_length: Count = 128
    backlog_s: Hour = 120.0
    user_rate: Annotated[float, Between(0.0, 60_000.0)] = 0.0
    weights: dict[str, Annotated[float, Between(0.01, 100.0)]] = field(default_factory=dict)
    approval_channels: tuple[str, ...] = ()
    """Channels whose requests wait for a moderator's approval."""


@dataclass(frozen=True)
class ServerConfig(Ranged):
    listen: str = LOOPBACK_GRPC
    """Port 0 stands for a free one. Beyond loopback the address needs TLS or `open_to_network`."""
    open_to_network: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    """Key file without a password."""
    tls_clients: str = ""
    tokens: str = ""
    socket: str = "/run/f5-appliance/grpc.sock"
    admin_socket: str | None = None
    """Socket that only the daemon's user may open."""
    metrics: str = LOOPBACK_METRICS
    agent: str = ""
    reflection: bool = True
    max_receive_bytes: Count = 16 * MIB
    message_s: Annotated[float, Between(0.1, 0.2)] = 0.2
    """Longest audio of one message. Messages contain at least half of it."""
    stream_buffer_s: Hour = 20.0
    write_timeout_s: Annotated[float, Between(0.1, 3_600.0)] = 30.0
    max_calls: Count = 256
    max_calls_of_peer: Count = 128
    session_idle_s: Annotated[float, Between(1.0, 86_400.0)] = 600.0
    drain_s: Hour = 20.0

    @property
    def admin(self) -> Path | None:
        if self.admin_socket is None:
            return Path(self.socket).with_name("admin.sock") if self.socket else None
        return Path(self.admin_socket) if self.admin_socket else None

    def __post_init__(self) -> None:
        host, _ = split_address("listen", self.listen)
        for key in ("tls_certificate", "tls_key", "tls_clients", "tokens", "socket", "admin_socket"):
            check_path(key, getattr(self, key) or "")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key: set both or neither")
        if self.tls_clients and not self.tls_certificate:
            raise ValueError("tls_clients: needs tls_certificate and tls_key")
        if not (self.tls_certificate or self.open_to_network or is_loopback(host)):
            raise ValueError(
                f"listen: {self.listen} can be reached from the network: set tls_certificate and tls_key, or "
                "write the line `open_to_network: true` to accept everybody, unencrypted"
            )
        if self.metrics:
            split_address("metrics", self.metrics)
        if self.agent:
            split_address("agent", self.agent)
        super().__post_init__()


@dataclass(frozen=True)
class GatewayConfig(Ranged):
    """HTTP for clients without gRPC. Certificate and tokens are the server's."""

    listen: str = LOOPBACK_HTTP
    open_to_network: bool = False
    daemon: str = ""
    authority: str = ""
    """PEM of the certificate, or of its authority, for a `daemon` at host:port; "" for no TLS."""
    names: tuple[str, ...] = ()
    """Additional host names of the gateway.

    It knows localhost and its addresses; beyond loopback it knows every address and the machine's own name.
    """
    origins: tuple[str, ...] = ()
    """Origins (scheme://host[:port]) of pages that may do everything; "*": any page may speak."""
    voice: str = ""
    voices: dict[str, str] = field(default_factory=dict)
    max_body_bytes: Count = 1 * MIB
    max_requests: Count = 128
    max_connections: Count = 512
    stall_s: Annotated[float, Between(0.1, 3_600.0)] = 30.0
    drain_s: Hour = 20.0

    def __post_init__(self) -> None:
        split_address("listen", self.listen)
        check_path("daemon", self.daemon)
        check_path("authority", self.authority)
        if self.authority or (self.daemon and not self.daemon.startswith("unix:/")):
            split_address("daemon", self.daemon)
        for name in self.names:
            if not NAME.fullmatch(name):
                raise ValueError(f"names: must be hosts without a port, as voicebox.lan, not {shown(name)}")
        for origin in self.origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f'origins: must be scheme://host[:port] or "*", not {shown(origin)}')
        super().__post_init__()


@dataclass(frozen=True)
class WyomingConfig(Ranged):
    """Home Assistant's protocol, which has neither TLS nor tokens."""

    listen: str = LOOPBACK_WYOMING
    open_to_network: bool = False
    voice: str = ""
    max_connections: Count = 64
    stall_s: Annotated[float, Between(0.1, 3_600.0)] = 30.0
    idle_s: Annotated[float, Between(0.1, 86_400.0)] = 300.0
    drain_s: Hour = 20.0

    def __post_init__(self) -> None:
        split_address("listen", self.listen)
        super().__post_init__()


@dataclass(frozen=True)
class DeviceConfig:
    sysroot: Path = Path("/")
    clocks: Path = Path("/run/f5-appliance/clocks.json")
    power_mode: str | None = None
    """Root's commands, which have no YAML parser, read this key in /etc/f5-appliance/appliance.yaml."""

    def __post_init__(self) -> None:
        if self.power_mode is not None and not re.fullmatch(MODE_NAME, self.power_mode, re.ASCII):
            what = f"the name of a power mode ({MODE_LETTERS}) or null"
            raise ValueError(f"power_mode: must be {what}, not {shown(self.power_mode)}")
        for name, path in (("sysroot", self.sysroot), ("clocks", self.clocks)):
            if not path.is_absolute():
                raise ValueError(f"{name}: must be an absolute path, not {shown(str(path))}")


@dataclass(frozen=True)
class LogConfig:
    """No level logs the spoken texts."""

    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True)
class Config:
    bundle: BundleConfig = field(default_factory=BundleConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    text: TextConfig = field(default_factory=TextConfig)
    audio: AudioConfig = field(default_factory=AudioConfig)
    voices: VoicesConfig = field(default_factory=VoicesConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    wyoming: WyomingConfig = field(default_factory=WyomingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    log: LogConfig = field(default_factory=LogConfig)


def load(
    path: Path | None, overrides: Iterable[str] = (), warn: Callable[[str], None] = logger.warning
) -> Config:
    """Read a configuration file (None: the defaults alone), with overrides `section.key=value`.

    `warn` gets a line for each setting that a newer version has removed. Such a setting is replaced, so that
    a box speaks after an upgrade. Raises ConfigError, which names the file, section and key, and what is
    allowed.
    """
    raw = {} if path is None else _read(path)
    for override in overrides:
        _override(raw, override)
    where = str(path or "--set")
    for line in _replace_removed(raw):
        warn(f"{where}: {line}")
    return from_mapping(Config, raw, where=where, error=ConfigError)


def _replace_removed(raw: dict[str, Any]) -> Iterator[str]:
    """Replace settings of earlier versions. Yields a line for each that changes the behaviour of the box."""
    match raw.get("engine", {}):
        case {"backend": "openvino"} as engine:
            engine["backend"] = "ort-cpu"
            yield (
                "engine.backend: openvino was removed in 0.25, and ort-cpu takes its place: write ort-cpu; "
                "it is quicker with an int8 bundle"
            )
    match raw.get("scheduler", {}):
        case {"policy": "deadline" | "fifo" as policy} as scheduler:
            del scheduler["policy"]  # `deadline` is in the file that packages up to 0.24 installed
            if policy == "fifo":
                yield (
                    "scheduler.policy: fifo was removed in 0.25, since one long text kept all others "
                    "waiting; the earliest deadline goes first: delete the key"
                )
    match raw.get("scheduler", {}):
        case {"proof": _} as scheduler:
            del scheduler["proof"]
            yield "scheduler.proof was removed in 0.31: no recogniser hears replies any more: delete the key"


def split_address(name: str, address: str) -> tuple[str, int]:
    """(host, port) of "host:port"; an IPv6 host may be in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not (ADDRESS.fullmatch(address) and (host[0] != "[" or _is_ipv6(host[1:-1])) and int(port) <= 65_535):
        allowed = "host:port or [IPv6 address]:port, with a port up to 65535"
        raise ValueError(f"{name}: must be {allowed}, not {shown(address)}")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the host; False for names other than localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _read(path: Path) -> dict[str, Any]:
    """Sections of a YAML file. Raises ConfigError."""
    try:
        raw = parse_yaml(path.read_bytes(), path, ConfigError)
    except FileNotFoundError as missing:
        raise ConfigError(f"{path}: no such file") from missing
    except OSError as error:
        raise ConfigError(f"{path}: unreadable: {error}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold a mapping of sections, not {type(raw).__name__}")
    # A section whose keys are all commented out reads as null.
    return {str(key): {} if value is None else value for key, value in raw.items()}


def _override(raw: dict[str, Any], override: str) -> None:
    """Set one key from `section.key=value`. Raises ConfigError."""
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {override}: must be section.key=value")
    # "[::1]:8880" would begin a list in YAML.
    is_plain = not text.strip() or ADDRESS.fullmatch(text)
    value = text.strip() if is_plain else parse_yaml(text, f"--set {override}", ConfigError)
    keys = raw.setdefault(section, {})
    if not isinstance(keys, dict):
        raise ConfigError(f"{section}: must be a mapping, not {type(keys).__name__}")
    keys[key] = value
