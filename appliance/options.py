"""Options of a request, a row each: read by daemon, Python client, HTTP gateway and `appliance say`.

Another option is a field of appliance.proto (`scripts/proto` writes the stubs), a row and a line of Options
here, and what it does: for an option of the text a field of `speech/wish.py`, used in `speech/speech.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from appliance.contract.limits import MAX_GAIN_DB, MAX_GUIDANCE, MAX_NFE
from appliance.encodings import EncodingName

Encoding = EncodingName
ENCODINGS: tuple[str, ...] = get_args(Encoding)
Priority = Literal["bulk", "normal", "high", "realtime"]
PRIORITIES: tuple[str, ...] = get_args(Priority)
TextHandling = Literal["chat", "verbatim", "ssml"]
MAX_KEY_CHARACTERS = 128
HOUR_S = 3_600.0
AUTO = "auto"
"""In place of a voice: that of the text's language, where no voice has this name."""
MAX_SEED = 2**64 - 1


class OptionKind(enum.Enum):
    TEXT = "text"
    KEY = "key"
    """Text of at most MAX_KEY_CHARACTERS."""
    WHOLE = "whole"
    NUMBER = "number"
    DURATION = "duration"
    """Seconds."""
    CHOICE = "choice"
    FLAG = "flag"
    WORDS = "words"
    """Text by word."""


@dataclass(frozen=True)
class Flag:
    """Argument of `appliance say`."""

    name: str
    about: str
    metavar: str | None = None


@dataclass(frozen=True)
class Option:
    field: str
    """Path in SynthesizeRequest."""
    kind: OptionKind
    short: str = ""
    """Name at the Python client, in place of the field's own."""
    between: tuple[float, float] | None = None
    """Least and most value; None: the daemon's configuration or another field decides."""
    choices: tuple[str, ...] = ()
    http: str = ""
    """Parameter of every HTTP API; "": of none."""
    flag: Flag | None = None

    @property
    def own(self) -> str:
        """Name of the field in its message."""
        return self.field.rpartition(".")[2]

    @property
    def name(self) -> str:
        """Key in Options."""
        return self.short or self.own


OPTIONS = (
    Option("audio_config.encoding", OptionKind.CHOICE, choices=ENCODINGS),
    Option(
        "audio_config.sample_rate_hertz",
        OptionKind.WHOLE,
        "rate",
        flag=Flag("--rate", "absent: the model's own", "HZ"),
    ),
    Option(
        "audio_config.speaking_rate",
        OptionKind.NUMBER,
        "speed",
        between=(0.25, 4.0),
        flag=Flag("--speed", "speaking rate; 1 is the voice's own"),
    ),
    Option(
        "nfe_steps",
        OptionKind.WHOLE,
        "nfe",
        between=(1, MAX_NFE),
        http="nfe",
        flag=Flag("--nfe", "function evaluations; absent: the daemon's"),
    ),
    Option(
        "min_nfe_steps",
        OptionKind.WHOLE,
        "min_nfe",
        flag=Flag("--min-nfe", "take fewer rather than be refused", "N"),
    ),
    Option(
        "seed",
        OptionKind.WHOLE,
        between=(0, MAX_SEED),
        http="seed",
        flag=Flag("--seed", "absent: drawn by the daemon"),
    ),
    Option("guidance", OptionKind.NUMBER, between=(0.0, MAX_GUIDANCE)),
    Option(
        "segmentation",
        OptionKind.CHOICE,
        choices=("upstream", "low_latency"),
        flag=Flag("--segmentation", "how texts are cut"),
    ),
    Option(
        "priority",
        OptionKind.CHOICE,
        choices=PRIORITIES,
        http="priority",
        flag=Flag("--priority", "how soon the first sound is due"),
    ),
    Option(
        "channel",
        OptionKind.KEY,
        http="channel",
        flag=Flag("--channel", "replies of one channel play one after the other"),
    ),
    Option(
        "user_key",
        OptionKind.KEY,
        "user",
        http="user",
        flag=Flag("--user", "whose message it is, for rate limits", "KEY"),
    ),
    Option(
        "text_handling",
        OptionKind.CHOICE,
        choices=get_args(TextHandling),
        http="text_handling",
        flag=Flag("--text-handling", "absent: chat"),
    ),
    Option(
        "language_code",
        OptionKind.TEXT,
        "language",
        http="language",
        flag=Flag("--language", "of the text: de, pt-BR; absent: the bundle's", "CODE"),
    ),
    Option(
        "style",
        OptionKind.TEXT,
        http="style",
        flag=Flag("--style", "of the voice's; absent: its own recording", "NAME"),
    ),
    Option(
        "voice_tags",
        OptionKind.FLAG,
        http="voice_tags",
        flag=Flag("--voice-tags", "[voice:NAME] in the text goes on in another voice"),
    ),
    Option("pronunciations", OptionKind.WORDS),
    Option(
        "max_spoken_seconds",
        OptionKind.NUMBER,
        "max_spoken",
        between=(0.0, HOUR_S),
        http="max_spoken_seconds",
    ),
    Option(
        "gain_db",
        OptionKind.NUMBER,
        between=(-MAX_GAIN_DB, MAX_GAIN_DB),
        http="gain_db",
        flag=Flag("--gain", f"louder or quieter: -{MAX_GAIN_DB:g} to {MAX_GAIN_DB:g}", "DB"),
    ),
    Option(
        "supersede_key",
        OptionKind.KEY,
        "supersede",
        http="supersede_key",
        flag=Flag("--supersede", "abort waiting requests of the channel with this key", "KEY"),
    ),
    Option("merge_key", OptionKind.KEY, "merge", http="merge_key"),
    Option("merge_count", OptionKind.WHOLE, between=(0, 1_000_000), http="merge_count"),
    Option("merge_count_is_total", OptionKind.FLAG, http="merge_count_is_total"),
    Option("merge_text", OptionKind.TEXT, http="merge_text"),
    Option(
        "queue_timeout",
        OptionKind.DURATION,
        between=(0.0, HOUR_S),
        http="queue_timeout",
        flag=Flag("--queue-timeout", "wait so long rather than be refused", "S"),
    ),
    Option("playout", OptionKind.CHOICE, choices=("serial", "overlap"), http="playout"),
    Option(
        "request_id",
        OptionKind.TEXT,
        http="request_id",
        flag=Flag("--request-id", "name for `appliance cancel`", "ID"),
    ),
    Option("word_timings", OptionKind.FLAG),
)

BY_FIELD: Mapping[str, Option] = {option.field: option for option in OPTIONS}
SHORT: Mapping[str, str] = {option.own: option.name for option in OPTIONS if option.short}
"""Field's own name → the short one; an option is taken by either."""


class FieldOptions(TypedDict, total=False):
    """Options by fields' names, where `Options` has shorter ones."""

    sample_rate_hertz: int | None
    speaking_rate: float | None
    language_code: str | None
    nfe_steps: int | None
    min_nfe_steps: int | None
    user_key: str | None
    max_spoken_seconds: float | None
    supersede_key: str | None
    merge_key: str | None


class Options(FieldOptions, total=False):
    """Options of `speak`, `stream`, `session`: the names in OPTIONS. None or absent: the daemon's default."""

    encoding: Encoding | None
    """Default: WAV from `speak`, PCM16 from `stream`."""
    rate: int | None
    """Hz; default: the model's."""
    speed: float | None
    """Speaking rate; above 1 is faster."""
    nfe: int | None
    """Function evaluations, up to the daemon's `synthesis.max_nfe`."""
    seed: int | None
    guidance: float | None
    segmentation: Literal["upstream", "low_latency"] | None
    priority: Priority | None
    channel: str | None
    """Player, whose replies follow one another."""
    user: str | None
    """Author of the message, for rate limits."""
    text_handling: TextHandling | None
    """Default: chat."""
    language: str | None
    """BCP 47: "de"; default: the bundle's."""
    style: str | None
    """Recording of the voice to begin with; default: its own, "neutral"."""
    voice_tags: bool | None
    """Let [voice:NAME] in the text switch to another voice; default: such a tag is text."""
    pronunciations: Mapping[str, str] | None
    """Spoken form by word."""
    max_spoken: float | None
    """Seconds of speech to which the text is cut, at a clause."""
    gain_db: float | None
    """Louder or quieter than the daemon's loudness."""
    supersede: str | None
    """Key: abort this channel's waiting requests with it."""
    merge: str | None
    """Key: speak for this channel's waiting requests with it."""
    merge_count: int | None
    merge_count_is_total: bool | None
    """True if `merge_count` counts all so far; default: it is added to what waits."""
    merge_text: str | None
    """Text for several, with "{count}"."""
    queue_timeout: float | None
    """Seconds by which the first sound may miss its target."""
    min_nfe: int | None
    """Fewest steps to take rather than a refusal."""
    playout: Literal["serial", "overlap"] | None
    request_id: str | None
    """Id for `cancel`: 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"."""
    word_timings: bool | None
    """Fill `words` of header, end and reply."""
