"""The daemon's configuration: YAML → frozen dataclasses, which hold the only defaults.

Unknown keys are errors that name the valid ones. A section may be left out; `--set section.key=value` on
the command line goes over the file.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from appliance.contract.bundle import from_mapping
from appliance.contract.schedule import MAX_NFE
from appliance.errors import ConfigError

LOOPBACK_GRPC = "127.0.0.1:50051"
LOOPBACK_METRICS = "127.0.0.1:9464"
LOOPBACK_HTTP = "127.0.0.1:8880"
MIB = 1 << 20
MAX_GUIDANCE = 10.0
LEAST_PIECE_S = 15.0
"""The longest reference and some speech after it."""
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+")


@dataclass(frozen=True)
class BundleConfig:
    """Which bundle the daemon speaks from."""

    path: Path = Path("/var/lib/f5-appliance/bundle")
    verify: bool = True
    """Compare the hash of every file at start."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of the engine: backend, device memory, threads."""

    backend: Literal["auto", "tensorrt", "ort-cuda", "ort-cpu", "openvino"] = "auto"
    """auto: the first of tensorrt, ort-cuda and ort-cpu that this machine has and the bundle passes on."""
    cache: Path = Path("/var/cache/f5-appliance/engines")
    """Folder of the engines that tensorrt builds for this device; may be emptied at any time."""
    threads: int = 0
    """CPU threads; 0 takes one for each core."""
    lanes: int = 8
    """Segments that may be under way at a time."""
    spinning: bool = False
    """Keep idle threads busy between operators: only for cores that nothing else needs."""
    longest_s: float | None = None
    """Seconds of reference and speech in one piece, at most; null: all that the bundle allows."""

    def __post_init__(self) -> None:
        if self.longest_s is not None:
            _between("longest_s", self.longest_s, LEAST_PIECE_S, 3_600.0)
        _at_least("threads", self.threads, 0)
        _between("lanes", self.lanes, 1, 64)


@dataclass(frozen=True)
class SynthesisConfig:
    """Defaults of a synthesis request, and the range that it may ask for."""

    nfe: int = 7
    """Function evaluations of the flow; 5 is quicker, 16 and 32 are finer."""
    guidance: float | None = None
    """Strength of classifier-free guidance; null takes the bundle's."""
    seed: int | None = None
    """Seed of the noise; null draws another for each request and reports it."""
    unary_segmentation: Literal["upstream", "low_latency"] = "upstream"
    stream_segmentation: Literal["upstream", "low_latency", "adaptive"] = "adaptive"
    """adaptive: upstream where the first audio is in time and no seed is given, else low_latency."""
    max_text_characters: int = 2_000
    max_nfe: int = 32
    """The most steps that a request may ask for."""
    max_audio_s: float = 180.0
    """Speech in one request, at most."""
    max_work_s: float = 1_800.0
    """Seconds of speech × steps in one request, at most."""

    def __post_init__(self) -> None:
        _between("nfe", self.nfe, 1, MAX_NFE)
        if self.guidance is not None:
            _between("guidance", self.guidance, 0.0, MAX_GUIDANCE)
        if self.seed is not None:
            _between("seed", self.seed, 0, 2**64 - 1)
        _at_least("max_text_characters", self.max_text_characters, 1)
        _between("max_nfe", self.max_nfe, self.nfe, MAX_NFE)
        _between("max_audio_s", self.max_audio_s, 1.0, 3_600.0)
        _between("max_work_s", self.max_work_s, 1.0, 3_600.0 * MAX_NFE)


@dataclass(frozen=True)
class TextConfig:
    """Choices for chat that has more than one reading."""

    links: Literal["name", "drop"] = "name"
    """name: "link" is said for each."""
    emoji: Literal["name", "drop"] = "name"
    """name: each run is named once."""
    language: Literal["en", "zh"] = "en"
    """Language of lines without a word, such as "666"."""


@dataclass(frozen=True)
class VoicesConfig:
    """Settings of the voice store."""

    folder: Path = Path("/var/lib/f5-appliance/voices")
    cache: Path = Path("/var/cache/f5-appliance")
    """Prepared references; may be emptied at any time."""
    memory_entries: int = 64
    """Number of prepared references kept in memory."""
    max_reference_bytes: int = 12 * MIB

    def __post_init__(self) -> None:
        _at_least("memory_entries", self.memory_entries, 1)
        _at_least("max_reference_bytes", self.max_reference_bytes, 1)


@dataclass(frozen=True)
class CacheConfig:
    """Replies that are kept, so that a phrase which comes again costs the engine nothing."""

    phrases_bytes: int = 64 * MIB
    """Limit of the samples kept in memory, 96 kB a second at 24 kHz; 0 keeps none."""
    drawn_seeds: bool = False
    """Keep replies to requests without a seed too: the same text then always sounds the same."""

    def __post_init__(self) -> None:
        _between("phrases_bytes", self.phrases_bytes, 0, 1 << 34)


@dataclass(frozen=True)
class SchedulerConfig:
    """Order of the engine's work, and limits of admission."""

    policy: Literal["deadline", "fifo"] = "deadline"
    """fifo: one request after the other, for comparison."""
    realtime_s: float = 0.3
    """Target for the first audio of a REALTIME request; or 1.4 times its time on an idle box, if longer."""
    high_s: float = 0.45
    """Target of a HIGH request; or 1.8 times."""
    normal_s: float = 0.6
    """Target of a NORMAL request; or 2.2 times."""
    queue_length: int = 128
    """Requests that may wait; half as many of one client, channel or user."""
    backlog_s: float = 120.0
    """Speech that may wait to be played on one channel."""
    user_rate: float = 0.0
    """Requests a minute of one user_key; 0 for no limit."""
    weights: dict[str, float] = field(default_factory=dict)
    """Shares of channels, by name; 1 where none is given."""

    def __post_init__(self) -> None:
        _at_least("queue_length", self.queue_length, 1)
        for name in ("realtime_s", "high_s", "normal_s"):
            _between(name, getattr(self, name), 0.0, 60.0)
        _between("backlog_s", self.backlog_s, 0.0, 3_600.0)
        _between("user_rate", self.user_rate, 0.0, 60_000.0)
        for channel, weight in self.weights.items():
            _between(f"weights.{channel}", weight, 0.01, 100.0)


@dataclass(frozen=True)
class ServerConfig:
    """Addresses, sockets and limits of the gRPC server."""

    listen: str = LOOPBACK_GRPC
    """host:port; port 0 takes a free one. Beyond loopback it needs TLS or `open_to_network`."""
    open_to_network: bool = False
    """Listen to a network in plain text: whoever reaches the port can read along."""
    tls_certificate: str = ""
    """PEM file of the server's certificate chain; empty for plain text. Read again when it changes."""
    tls_key: str = ""
    """PEM file of its private key, without a password."""
    tls_clients: str = ""
    """PEM file of authorities: clients have to show a certificate of one of them; empty: they need none."""
    tokens: str = ""
    """File of `appliance tokens`: TCP calls have to show one of them; empty: they need none."""
    socket: str = "/run/f5-appliance/grpc.sock"
    """Path of the Unix socket; empty for none."""
    admin_socket: str | None = None
    """Unix socket of the Admin service, which only the daemon's user may open; null: admin.sock beside
    `socket`, empty for none."""
    metrics: str = LOOPBACK_METRICS
    """host:port of /metrics, /livez and /readyz; empty for none."""
    agent: str = ""
    """host:port of haproxy's agent check, usually 127.0.0.1:9465; empty for none."""
    reflection: bool = True
    max_receive_bytes: int = 16 * MIB
    message_s: float = 0.2
    """Seconds of audio in one message of a stream, at most; at least half of it."""
    stream_buffer_s: float = 20.0
    """Seconds of finished audio that wait for a slow reader before its stream is set aside."""
    write_timeout_s: float = 30.0
    """Seconds without a read, from when all that was read can be played out, after which a stream ends."""
    max_calls: int = 256
    """Synthesis calls and sessions at a time; one more is refused."""
    max_calls_of_peer: int = 128
    """Part of these that one address or one token may use over TCP."""
    session_idle_s: float = 600.0
    """Seconds without a word and without anything to say, after which a session ends."""
    drain_s: float = 20.0
    """Time that requests may take to finish after SIGTERM."""

    @property
    def admin(self) -> Path | None:
        """Path of the Admin service's socket, if it listens."""
        if self.admin_socket is None:
            return Path(self.socket).with_name("admin.sock") if self.socket else None
        return Path(self.admin_socket) if self.admin_socket else None

    def __post_init__(self) -> None:
        host, _ = split_address("listen", self.listen)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key: one is of no use without the other")
        if self.tls_clients and not self.tls_certificate:
            raise ValueError("tls_clients: needs tls_certificate and tls_key")
        if not (self.tls_certificate or self.open_to_network or is_loopback(host)):
            raise ValueError(
                f"listen: {self.listen} can be reached from the network: set tls_certificate and tls_key, or "
                "write the line `open_to_network: true` to speak in plain text with whoever comes"
            )
        if self.metrics:
            split_address("metrics", self.metrics)
        if self.agent:
            split_address("agent", self.agent)
        _at_least("max_receive_bytes", self.max_receive_bytes, 1)
        _between("message_s", self.message_s, 0.1, 0.2)
        _between("stream_buffer_s", self.stream_buffer_s, 0.0, 3_600.0)
        _between("write_timeout_s", self.write_timeout_s, 0.1, 3_600.0)
        _at_least("max_calls", self.max_calls, 1)
        _at_least("max_calls_of_peer", self.max_calls_of_peer, 1)
        _between("session_idle_s", self.session_idle_s, 1.0, 86_400.0)
        _between("drain_s", self.drain_s, 0.0, 3_600.0)


@dataclass(frozen=True)
class GatewayConfig:
    """HTTP for clients that speak no gRPC: `appliance gateway`. Certificate and tokens are the server's."""

    listen: str = LOOPBACK_HTTP
    open_to_network: bool = False
    """Listen to a network without TLS: text and audio can be read, and tokens taken, by whoever is on it."""
    daemon: str = ""
    """host:port or unix:PATH; empty: `server.socket` where there is one, else `server.listen`."""
    origins: tuple[str, ...] = ("*",)
    """Web pages that may call it from a browser: scheme://host[:port], "*" for all."""
    voice: str = ""
    """Speaks for OpenAI's own voice names and where none is named; empty: the only voice that is stored."""
    voices: dict[str, str] = field(default_factory=dict)
    """Other names for stored voices: `alloy: anna`."""
    max_body_bytes: int = 1 * MIB
    max_requests: int = 128
    """Requests that are worked on at a time; one more is refused."""
    max_connections: int = 512
    """One more is closed at once."""
    stall_s: float = 30.0
    """Seconds without progress of a request on its way in, or a reply on its way out; then it is cut off."""
    drain_s: float = 20.0
    """Time that replies may take to finish after SIGTERM."""

    def __post_init__(self) -> None:
        split_address("listen", self.listen)
        if self.daemon and not self.daemon.startswith("unix:/"):
            split_address("daemon", self.daemon)
        for origin in self.origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f'origins: must be scheme://host[:port] or "*", not {origin!r}')
        _at_least("max_body_bytes", self.max_body_bytes, 1)
        _at_least("max_requests", self.max_requests, 1)
        _at_least("max_connections", self.max_connections, 1)
        _between("stall_s", self.stall_s, 0.1, 3_600.0)
        _between("drain_s", self.drain_s, 0.0, 3_600.0)


@dataclass(frozen=True)
class DeviceConfig:
    """The box itself: where it is read."""

    sysroot: Path = Path("/")
    """The tree that stands for the machine's files; another than / only in tests."""
    clocks: Path = Path("/run/f5-appliance/clocks.json")
    """Inside it: what root's check of the clocks publishes."""
    power_mode: str | None = None
    """Power mode that supply and cooling allow, as nvpmodel.conf names it; null: MAXN_SUPER or MAXN.
    Root's commands read it in /etc/f5-appliance/appliance.yaml, on a line of its own."""

    def __post_init__(self) -> None:
        if self.power_mode is not None and not re.fullmatch(r"\w+", self.power_mode, re.ASCII):
            raise ValueError(f"power_mode: must be the name of a power mode or null, not {self.power_mode!r}")
        _absolute("sysroot", self.sysroot)
        _absolute("clocks", self.clocks)


@dataclass(frozen=True)
class LogConfig:
    """Settings of the log on standard error; the texts that are spoken are never logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True)
class Config:
    """Everything that can be set."""

    bundle: BundleConfig = field(default_factory=BundleConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    text: TextConfig = field(default_factory=TextConfig)
    voices: VoicesConfig = field(default_factory=VoicesConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    log: LogConfig = field(default_factory=LogConfig)


def load(path: Path | None, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration file (None: the defaults alone) and lay `section.key=value` overrides over it.

    Raises ConfigError naming the file, section and key, and what is allowed there.
    """
    raw = {} if path is None else _read(path)
    for override in overrides:
        _override(raw, override)
    config: Config = from_mapping(Config, raw, where=str(path or "--set"), error=ConfigError)
    return config


def split_address(name: str, address: str) -> tuple[str, int]:
    """ "host:port" as its parts; brackets around an IPv6 host are kept. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{name}: must be host:port with a port up to 65535, not {address!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches that host; False for a name other than localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError as missing:
        raise ConfigError(f"{path}: no such file") from missing
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: unreadable: {' '.join(str(error).split())}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold a mapping of sections, not {type(raw).__name__}")
    # A section whose keys are all commented out reads as null.
    return {str(key): {} if value is None else value for key, value in raw.items()}


def _override(raw: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {override}: must be section.key=value")
    try:
        value = yaml.safe_load(text) if text.strip() else ""
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"--set {override}: the value is not YAML") from error
    keys = raw.setdefault(section, {})
    if not isinstance(keys, dict):
        raise ConfigError(f"{section}: must be a mapping, not {type(keys).__name__}")
    keys[key] = value


def _absolute(name: str, path: Path) -> None:
    if not path.is_absolute():
        raise ValueError(f"{name}: must be an absolute path, not {str(path)!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: must be at least {least}, not {value}")


def _between(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name}: must be between {least} and {most}, not {value}")
