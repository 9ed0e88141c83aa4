"""The daemon's configuration: YAML → frozen dataclasses, which hold the only defaults.

Unknown keys are errors that name the valid ones. A section may be left out; `--set section.key=value` on
the command line goes over the file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from appliance.contract.schedule import MAX_NFE
from appliance.contract.yaml_text import parse_yaml
from appliance.errors import ConfigError
from appliance.fields import AtLeast, Between, Ranged, from_mapping

LOOPBACK_GRPC = "127.0.0.1:50051"
LOOPBACK_METRICS = "127.0.0.1:9464"
LOOPBACK_HTTP = "127.0.0.1:8880"
MIB = 1 << 20
MAX_GUIDANCE = 10.0
LEAST_PIECE_S = 15.0
"""The longest reference and some speech after it."""
Count = Annotated[int, AtLeast(1)]
Target = Annotated[float, Between(0.0, 60.0)]
Hour = Annotated[float, Between(0.0, 3_600.0)]
"""Seconds, up to an hour."""
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+")


@dataclass(frozen=True)
class BundleConfig:
    """Bundle that the daemon speaks from."""

    path: Path = Path("/var/lib/f5-appliance/bundle")
    verify: bool = True
    """Compare the hash of every file at start."""


@dataclass(frozen=True)
class EngineConfig(Ranged):
    """Settings of the engine: backend, device memory, threads."""

    backend: Literal["auto", "tensorrt", "ort-cuda", "ort-cpu", "openvino"] = "auto"
    """auto: the first of tensorrt, ort-cuda and ort-cpu that this machine has and the bundle passes on."""
    cache: Path = Path("/var/cache/f5-appliance/engines")
    """Folder of the engines that tensorrt builds for this device; may be emptied at any time."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads; 0 takes one for each core."""
    lanes: Annotated[int, Between(1, 64)] = 8
    """Segments that may be under way at a time."""
    spinning: bool = False
    """Keep idle threads busy between operators: only for cores that nothing else needs."""
    longest_s: Annotated[float | None, Between(LEAST_PIECE_S, 3_600.0)] = None
    """Seconds of reference and speech in one piece, at most; null: all that the bundle allows."""


@dataclass(frozen=True)
class SynthesisConfig(Ranged):
    """Defaults of a synthesis request, and the range that it may ask for."""

    nfe: Annotated[int, Between(1, MAX_NFE)] = 7
    """Function evaluations of the flow; 5 is quicker, 16 and 32 are finer."""
    guidance: Annotated[float | None, Between(0.0, MAX_GUIDANCE)] = None
    """Strength of classifier-free guidance; null takes the bundle's."""
    seed: Annotated[int | None, Between(0, 2**64 - 1)] = None
    """Seed of the noise; null draws another for each request and reports it."""
    unary_segmentation: Literal["upstream", "low_latency"] = "upstream"
    stream_segmentation: Literal["upstream", "low_latency", "adaptive"] = "adaptive"
    """adaptive: upstream where the first audio is in time and no seed is given, else low_latency."""
    max_text_characters: Count = 4_096
    max_nfe: int = 32
    """The most steps that a request may ask for."""
    max_audio_s: Annotated[float, Between(1.0, 3_600.0)] = 180.0
    """Speech in one request, at most."""
    max_work_s: Annotated[float, Between(1.0, 3_600.0 * MAX_NFE)] = 1_800.0
    """Seconds of speech × steps in one request, at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Between(self.nfe, MAX_NFE).check("max_nfe", self.max_nfe)


@dataclass(frozen=True)
class TextConfig:
    """Choices for chat that has more than one reading."""

    links: Literal["name", "drop"] = "name"
    """name: "link" is said for each."""
    emoji: Literal["name", "drop"] = "name"
    """name: each run is named once."""
    directions: Literal["drop", "speak"] = "drop"
    """Stage directions, such as [laugh], *waves* and (sighs)."""
    language: Literal["en", "zh"] = "en"
    """Language of lines without a word, such as "666"."""


@dataclass(frozen=True)
class VoicesConfig(Ranged):
    """Settings of the voice store."""

    folder: Path = Path("/var/lib/f5-appliance/voices")
    cache: Path = Path("/var/cache/f5-appliance")
    """Prepared references; may be emptied at any time."""
    memory_entries: Count = 64
    """Number of prepared references kept in memory."""
    max_reference_bytes: Count = 12 * MIB


@dataclass(frozen=True)
class CacheConfig(Ranged):
    """Replies that are kept, so that a phrase which comes again costs the engine nothing."""

    phrases_bytes: Annotated[int, Between(0, 1 << 34)] = 64 * MIB
    """Limit of the samples kept in memory, 96 kB a second at 24 kHz; 0 keeps none."""
    drawn_seeds: bool = False
    """Keep replies to requests without a seed too: the same text then always sounds the same."""


@dataclass(frozen=True)
class SchedulerConfig(Ranged):
    """Order of the engine's work, and limits of admission."""

    policy: Literal["deadline", "fifo"] = "deadline"
    """fifo: one request after the other, for comparison."""
    realtime_s: Target = 0.3
    """Target for the first audio of a REALTIME request; or 1.4 times its time on an idle box, if longer."""
    high_s: Target = 0.45
    """Target of a HIGH request; or 1.8 times."""
    normal_s: Target = 0.6
    """Target of a NORMAL request; or 2.2 times."""
    queue_length: Count = 128
    """Requests that may wait; half as many of one client, channel or user."""
    backlog_s: Hour = 120.0
    """Speech that may wait to be played on one channel."""
    user_rate: Annotated[float, Between(0.0, 60_000.0)] = 0.0
    """Requests a minute of one user_key; 0 for no limit."""
    weights: dict[str, float] = field(default_factory=dict)
    """Shares of channels, by name; 1 where none is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for channel, weight in self.weights.items():
            Between(0.01, 100.0).check(f"weights.{channel}", weight)


@dataclass(frozen=True)
class ServerConfig(Ranged):
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
    max_receive_bytes: Count = 16 * MIB
    message_s: Annotated[float, Between(0.1, 0.2)] = 0.2
    """Seconds of audio in one message of a stream, at most; at least half of it."""
    stream_buffer_s: Hour = 20.0
    """Seconds of finished audio that wait for a slow reader before its stream is set aside."""
    write_timeout_s: Annotated[float, Between(0.1, 3_600.0)] = 30.0
    """Seconds without a read, from when all that was read can be played out, after which a stream ends."""
    max_calls: Count = 256
    """Synthesis calls and sessions at a time; one more is refused."""
    max_calls_of_peer: Count = 128
    """Part of these that one address or one token may use over TCP."""
    session_idle_s: Annotated[float, Between(1.0, 86_400.0)] = 600.0
    """Seconds without a word and without anything to say, after which a session ends."""
    drain_s: Hour = 20.0
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
        super().__post_init__()


@dataclass(frozen=True)
class GatewayConfig(Ranged):
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
    max_body_bytes: Count = 1 * MIB
    max_requests: Count = 128
    """Requests that are worked on at a time; one more is refused."""
    max_connections: Count = 512
    """One more is closed at once."""
    stall_s: Annotated[float, Between(0.1, 3_600.0)] = 30.0
    """Seconds without progress of a request on its way in, or a reply on its way out; then it is cut off."""
    drain_s: Hour = 20.0
    """Time that replies may take to finish after SIGTERM."""

    def __post_init__(self) -> None:
        split_address("listen", self.listen)
        if self.daemon and not self.daemon.startswith("unix:/"):
            split_address("daemon", self.daemon)
        for origin in self.origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f'origins: must be scheme://host[:port] or "*", not {origin!r}')
        super().__post_init__()


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
        for name, path in (("sysroot", self.sysroot), ("clocks", self.clocks)):
            if not path.is_absolute():
                raise ValueError(f"{name}: must be an absolute path, not {str(path)!r}")


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
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {override}: must be section.key=value")
    value = parse_yaml(text, f"--set {override}", ConfigError) if text.strip() else ""
    keys = raw.setdefault(section, {})
    if not isinstance(keys, dict):
        raise ConfigError(f"{section}: must be a mapping, not {type(keys).__name__}")
    keys[key] = value
