"""Options of a request, a row each, for the daemon, the Python client, the HTTP gateway and `appliance say`.

To add an option: a field of appliance.proto (`scripts/proto` writes the stubs), a row and a line of Options
here, and its effect. For scheduling that is a field of `request.Terms`; for text and sound a field of
`speech/wish.py`, used in `speech/speech.py` or in a rule of `speech/rules/`.
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
"""Name that stands for the voice of the text's language, unless a voice has this name."""
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
    """Word → its spoken form."""


TEXT, KEY, WHOLE, NUMBER, DURATION, CHOICE, FLAG, WORDS = OptionKind


@dataclass(frozen=True)
class Option:
    """An option of a request, and its names in the APIs."""

    field: str
    """Path in SynthesizeRequest."""
    kind: OptionKind
    short: str = ""
    """Name in the Python client, if it differs from the field's."""
    between: tuple[float, float] | None = None
    """Smallest and largest value; None if the configuration or another field limits it."""
    choices: tuple[str, ...] = ()
    http: str = ""
    """Parameter of every HTTP API; "" if there is none."""
    say: str = ""
    """Help for the argument of `appliance say`; "" if there is none."""
    metavar: str | None = None

    @property
    def own(self) -> str:
        """Name of the field in its message."""
        return self.field.rpartition(".")[2]

    @property
    def name(self) -> str:
        """Key in Options."""
        return self.short or self.own

    @property
    def argument(self) -> str:
        """Name of the argument of `appliance say`."""
        return "--" + self.name.removesuffix("_db").replace("_", "-")


OPTIONS = (
    Option("audio_config.encoding", CHOICE, choices=ENCODINGS),
    Option("audio_config.sample_rate_hertz", WHOLE, "rate", say="absent: the model's own", metavar="HZ"),
    Option(
        "audio_config.speaking_rate", NUMBER, "speed", (0.25, 4.0), say="speaking rate; 1 is the voice's own"
    ),
    Option(
        "nfe_steps", WHOLE, "nfe", (1, MAX_NFE), http="nfe", say="function evaluations; absent: the daemon's"
    ),
    Option("min_nfe_steps", WHOLE, "min_nfe", say="allow fewer steps, down to N", metavar="N"),
    Option("seed", WHOLE, between=(0, MAX_SEED), http="seed", say="absent: drawn by the daemon"),
    Option("guidance", NUMBER, between=(0.0, MAX_GUIDANCE)),
    Option("segmentation", CHOICE, choices=("upstream", "low_latency"), say="how texts are cut"),
    Option("priority", CHOICE, choices=PRIORITIES, http="priority", say="how soon the first sound is due"),
    Option("channel", KEY, http="channel", say="replies of one channel play one after the other"),
    Option("user_key", KEY, "user", http="user", say="author of the message, for rate limits", metavar="KEY"),
    Option("announce", KEY, http="announce", say='words before the line, as "{user} says"', metavar="WORDS"),
    Option("text_handling", CHOICE, choices=get_args(TextHandling), http="text_handling", say="absent: chat"),
    Option(
        "language_code",
        TEXT,
        "language",
        http="language",
        say="of the text: de, pt-BR; absent: the bundle's",
        metavar="CODE",
    ),
    Option("style", TEXT, http="style", say="of the voice's; absent: its own recording", metavar="NAME"),
    Option("voice_tags", FLAG, http="voice_tags", say="let [voice:NAME] in the text switch the voice"),
    Option("pronunciations", WORDS),
    Option("max_spoken_seconds", NUMBER, "max_spoken", (0.0, HOUR_S), http="max_spoken_seconds"),
    Option(
        "gain_db",
        NUMBER,
        between=(-MAX_GAIN_DB, MAX_GAIN_DB),
        http="gain_db",
        say=f"louder or quieter: -{MAX_GAIN_DB:g} to {MAX_GAIN_DB:g}",
        metavar="DB",
    ),
    Option(
        "supersede_key",
        KEY,
        "supersede",
        http="supersede_key",
        say="abort waiting requests of the channel with this key",
        metavar="KEY",
    ),
    Option("merge_key", KEY, "merge", http="merge_key"),
    Option("merge_count", WHOLE, between=(0, 1_000_000), http="merge_count"),
    Option("merge_count_is_total", FLAG, http="merge_count_is_total"),
    Option("merge_text", TEXT, http="merge_text"),
    Option(
        "queue_timeout",
        DURATION,
        between=(0.0, HOUR_S),
        http="queue_timeout",
        say="seconds by which the first sound may be late",
        metavar="S",
    ),
    Option("playout", CHOICE, choices=("serial", "overlap"), http="playout"),
    Option("request_id", TEXT, http="request_id", say="name for `appliance cancel`", metavar="ID"),
    Option("word_timings", FLAG),
)

BY_FIELD: Mapping[str, Option] = {option.field: option for option in OPTIONS}
SHORT: Mapping[str, str] = {option.own: option.name for option in OPTIONS if option.short}
"""Field's own name → its short name. Callers may use either."""


class FieldOptions(TypedDict, total=False):
    """Options by the names of their fields, if `Options` has shorter names for them."""

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
    """Options of `speak`, `stream`, `session`, by their names in OPTIONS.

    None or absent: the daemon's default.
    """

    encoding: Encoding | None
    """Default: WAV from `speak`, PCM16 from `stream`."""
    rate: int | None
    """Sample rate in Hz. Default: the model's."""
    speed: float | None
    """Speaking rate; above 1 is faster."""
    nfe: int | None
    """Number of function evaluations, up to the daemon's `synthesis.max_nfe`."""
    seed: int | None
    guidance: float | None
    segmentation: Literal["upstream", "low_latency"] | None
    priority: Priority | None
    channel: str | None
    """Player of the reply. Replies on one channel follow one another."""
    user: str | None
    """Author of the message, for rate limits."""
    announce: str | None
    """Words before the line, with "{user}", as in "{user} says"."""
    text_handling: TextHandling | None
    """Default: chat."""
    language: str | None
    """Language by BCP 47, as "de". Default: the bundle's."""
    style: str | None
    """Style of the voice at the beginning. Default: its own recording, "neutral"."""
    voice_tags: bool | None
    """If True, [voice:NAME] in the text switches to another voice. Default: such a tag is text."""
    pronunciations: Mapping[str, str] | None
    """Word → its spoken form."""
    max_spoken: float | None
    """Seconds of speech to which the text is cut, at a clause."""
    gain_db: float | None
    """Gain relative to the daemon's loudness."""
    supersede: str | None
    """Key. Waiting requests of the channel with the same key are aborted."""
    merge: str | None
    """Key. This request also speaks for waiting requests of the channel with the same key."""
    merge_count: int | None
    merge_count_is_total: bool | None
    """True if `merge_count` counts all requests so far. Default: it is added to the waiting count."""
    merge_text: str | None
    """Text for several requests, with "{count}"."""
    queue_timeout: float | None
    """Seconds by which the first audio may miss its target."""
    min_nfe: int | None
    """Fewest steps that are better than a refusal."""
    playout: Literal["serial", "overlap"] | None
    request_id: str | None
    """Id for `cancel`: 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"."""
    word_timings: bool | None
    """True fills `words` of header, end and reply."""
