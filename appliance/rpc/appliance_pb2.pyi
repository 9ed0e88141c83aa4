import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    WAV: _ClassVar[AudioEncoding]
    PCM16: _ClassVar[AudioEncoding]
    FLAC: _ClassVar[AudioEncoding]
    MP3: _ClassVar[AudioEncoding]
    OGG_OPUS: _ClassVar[AudioEncoding]
    MULAW: _ClassVar[AudioEncoding]
    ALAW: _ClassVar[AudioEncoding]

class Segmentation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENTATION_UNSPECIFIED: _ClassVar[Segmentation]
    UPSTREAM: _ClassVar[Segmentation]
    LOW_LATENCY: _ClassVar[Segmentation]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    BULK: _ClassVar[Priority]
    NORMAL: _ClassVar[Priority]
    HIGH: _ClassVar[Priority]
    REALTIME: _ClassVar[Priority]

class Playout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAYOUT_UNSPECIFIED: _ClassVar[Playout]
    SERIAL: _ClassVar[Playout]
    OVERLAP: _ClassVar[Playout]

class TextHandling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_HANDLING_UNSPECIFIED: _ClassVar[TextHandling]
    CHAT: _ClassVar[TextHandling]
    VERBATIM: _ClassVar[TextHandling]
    SSML: _ClassVar[TextHandling]

class UtteranceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UTTERANCE_STATE_UNSPECIFIED: _ClassVar[UtteranceState]
    WAITING: _ClassVar[UtteranceState]
    SOUNDING: _ClassVar[UtteranceState]
    ENDED: _ClassVar[UtteranceState]
    HELD: _ClassVar[UtteranceState]

class VoiceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOICE_STATE_UNSPECIFIED: _ClassVar[VoiceState]
    READY: _ClassVar[VoiceState]
    DAMAGED: _ClassVar[VoiceState]
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
WAV: AudioEncoding
PCM16: AudioEncoding
FLAC: AudioEncoding
MP3: AudioEncoding
OGG_OPUS: AudioEncoding
MULAW: AudioEncoding
ALAW: AudioEncoding
SEGMENTATION_UNSPECIFIED: Segmentation
UPSTREAM: Segmentation
LOW_LATENCY: Segmentation
PRIORITY_UNSPECIFIED: Priority
BULK: Priority
NORMAL: Priority
HIGH: Priority
REALTIME: Priority
PLAYOUT_UNSPECIFIED: Playout
SERIAL: Playout
OVERLAP: Playout
TEXT_HANDLING_UNSPECIFIED: TextHandling
CHAT: TextHandling
VERBATIM: TextHandling
SSML: TextHandling
UTTERANCE_STATE_UNSPECIFIED: UtteranceState
WAITING: UtteranceState
SOUNDING: UtteranceState
ENDED: UtteranceState
HELD: UtteranceState
VOICE_STATE_UNSPECIFIED: VoiceState
READY: VoiceState
DAMAGED: VoiceState

class AudioConfig(_message.Message):
    __slots__ = ("encoding", "sample_rate_hertz", "speaking_rate")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    SPEAKING_RATE_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hertz: int
    speaking_rate: float
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hertz: _Optional[int] = ..., speaking_rate: _Optional[float] = ...) -> None: ...

class SynthesizeRequest(_message.Message):
    __slots__ = ("text", "voice", "audio_config", "nfe_steps", "seed", "guidance", "segmentation", "priority", "channel", "user_key", "supersede_key", "queue_timeout", "min_nfe_steps", "playout", "request_id", "merge_key", "merge_count", "merge_count_is_total", "merge_text", "word_timings", "pronunciations", "text_handling", "language_code", "max_spoken_seconds", "style", "voice_tags", "announce", "gain_db")
    class PronunciationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_CONFIG_FIELD_NUMBER: _ClassVar[int]
    NFE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    USER_KEY_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDE_KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MIN_NFE_STEPS_FIELD_NUMBER: _ClassVar[int]
    PLAYOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MERGE_KEY_FIELD_NUMBER: _ClassVar[int]
    MERGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MERGE_COUNT_IS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MERGE_TEXT_FIELD_NUMBER: _ClassVar[int]
    WORD_TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    TEXT_HANDLING_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_CODE_FIELD_NUMBER: _ClassVar[int]
    MAX_SPOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    VOICE_TAGS_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    GAIN_DB_FIELD_NUMBER: _ClassVar[int]
    text: str
    voice: str
    audio_config: AudioConfig
    nfe_steps: int
    seed: int
    guidance: float
    segmentation: Segmentation
    priority: Priority
    channel: str
    user_key: str
    supersede_key: str
    queue_timeout: _duration_pb2.Duration
    min_nfe_steps: int
    playout: Playout
    request_id: str
    merge_key: str
    merge_count: int
    merge_count_is_total: bool
    merge_text: str
    word_timings: bool
    pronunciations: _containers.ScalarMap[str, str]
    text_handling: TextHandling
    language_code: str
    max_spoken_seconds: float
    style: str
    voice_tags: bool
    announce: str
    gain_db: float
    def __init__(self, text: _Optional[str] = ..., voice: _Optional[str] = ..., audio_config: _Optional[_Union[AudioConfig, _Mapping]] = ..., nfe_steps: _Optional[int] = ..., seed: _Optional[int] = ..., guidance: _Optional[float] = ..., segmentation: _Optional[_Union[Segmentation, str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., channel: _Optional[str] = ..., user_key: _Optional[str] = ..., supersede_key: _Optional[str] = ..., queue_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., min_nfe_steps: _Optional[int] = ..., playout: _Optional[_Union[Playout, str]] = ..., request_id: _Optional[str] = ..., merge_key: _Optional[str] = ..., merge_count: _Optional[int] = ..., merge_count_is_total: bool = ..., merge_text: _Optional[str] = ..., word_timings: bool = ..., pronunciations: _Optional[_Mapping[str, str]] = ..., text_handling: _Optional[_Union[TextHandling, str]] = ..., language_code: _Optional[str] = ..., max_spoken_seconds: _Optional[float] = ..., style: _Optional[str] = ..., voice_tags: bool = ..., announce: _Optional[str] = ..., gain_db: _Optional[float] = ...) -> None: ...

class WordTiming(_message.Message):
    __slots__ = ("word", "start_s", "end_s", "segment", "written_begin", "written_end")
    WORD_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_END_FIELD_NUMBER: _ClassVar[int]
    word: str
    start_s: float
    end_s: float
    segment: int
    written_begin: int
    written_end: int
    def __init__(self, word: _Optional[str] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., segment: _Optional[int] = ..., written_begin: _Optional[int] = ..., written_end: _Optional[int] = ...) -> None: ...

class TextChange(_message.Message):
    __slots__ = ("kind", "before", "after")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    before: str
    after: str
    def __init__(self, kind: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("sample_rate_hertz", "encoding", "nfe_steps", "seed", "guidance", "segmentation", "voice", "segments", "text", "backend", "request_id", "priority", "promised_ms", "words", "cached", "changes", "skipped_reason", "passed_over", "written")
    SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    NFE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTATION_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMISED_MS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    sample_rate_hertz: int
    encoding: AudioEncoding
    nfe_steps: int
    seed: int
    guidance: float
    segmentation: Segmentation
    voice: str
    segments: int
    text: str
    backend: str
    request_id: str
    priority: Priority
    promised_ms: float
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    cached: bool
    changes: _containers.RepeatedCompositeFieldContainer[TextChange]
    skipped_reason: str
    passed_over: _containers.RepeatedCompositeFieldContainer[PassedOver]
    written: str
    def __init__(self, sample_rate_hertz: _Optional[int] = ..., encoding: _Optional[_Union[AudioEncoding, str]] = ..., nfe_steps: _Optional[int] = ..., seed: _Optional[int] = ..., guidance: _Optional[float] = ..., segmentation: _Optional[_Union[Segmentation, str]] = ..., voice: _Optional[str] = ..., segments: _Optional[int] = ..., text: _Optional[str] = ..., backend: _Optional[str] = ..., request_id: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., promised_ms: _Optional[float] = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ..., cached: bool = ..., changes: _Optional[_Iterable[_Union[TextChange, _Mapping]]] = ..., skipped_reason: _Optional[str] = ..., passed_over: _Optional[_Iterable[_Union[PassedOver, _Mapping]]] = ..., written: _Optional[str] = ...) -> None: ...

class PassedOver(_message.Message):
    __slots__ = ("backend", "reason")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    backend: str
    reason: str
    def __init__(self, backend: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ms", "first_audio_ms", "condition_ms", "steps_ms", "vocoder_ms", "total_ms", "audio_ms", "rtf", "segments", "nfe_steps", "text_ms", "join_ms", "encode_ms")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AUDIO_MS_FIELD_NUMBER: _ClassVar[int]
    CONDITION_MS_FIELD_NUMBER: _ClassVar[int]
    STEPS_MS_FIELD_NUMBER: _ClassVar[int]
    VOCODER_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_MS_FIELD_NUMBER: _ClassVar[int]
    RTF_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    NFE_STEPS_FIELD_NUMBER: _ClassVar[int]
    TEXT_MS_FIELD_NUMBER: _ClassVar[int]
    JOIN_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    first_audio_ms: float
    condition_ms: float
    steps_ms: float
    vocoder_ms: float
    total_ms: float
    audio_ms: float
    rtf: float
    segments: int
    nfe_steps: int
    text_ms: float
    join_ms: float
    encode_ms: float
    def __init__(self, queue_ms: _Optional[float] = ..., first_audio_ms: _Optional[float] = ..., condition_ms: _Optional[float] = ..., steps_ms: _Optional[float] = ..., vocoder_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., audio_ms: _Optional[float] = ..., rtf: _Optional[float] = ..., segments: _Optional[int] = ..., nfe_steps: _Optional[int] = ..., text_ms: _Optional[float] = ..., join_ms: _Optional[float] = ..., encode_ms: _Optional[float] = ...) -> None: ...

class SynthesizeResponse(_message.Message):
    __slots__ = ("audio", "header", "timings", "words")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    audio: bytes
    header: Header
    timings: Timings
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    def __init__(self, audio: _Optional[bytes] = ..., header: _Optional[_Union[Header, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ...) -> None: ...

class Audio(_message.Message):
    __slots__ = ("data", "sequence", "sample_offset", "segment", "rest_is_made")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    REST_IS_MADE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sequence: int
    sample_offset: int
    segment: int
    rest_is_made: bool
    def __init__(self, data: _Optional[bytes] = ..., sequence: _Optional[int] = ..., sample_offset: _Optional[int] = ..., segment: _Optional[int] = ..., rest_is_made: bool = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("samples", "timings", "words", "heard_characters")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    HEARD_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    samples: int
    timings: Timings
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    heard_characters: int
    def __init__(self, samples: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ..., heard_characters: _Optional[int] = ...) -> None: ...

class StreamSynthesizeResponse(_message.Message):
    __slots__ = ("header", "audio", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: Header
    audio: Audio
    end: End
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., audio: _Optional[_Union[Audio, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

class CancelSynthesisRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelSynthesisResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("configure", "text", "flush", "cancel")
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    configure: SynthesizeRequest
    text: str
    flush: Flush
    cancel: CancelUtterance
    def __init__(self, configure: _Optional[_Union[SynthesizeRequest, _Mapping]] = ..., text: _Optional[str] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., cancel: _Optional[_Union[CancelUtterance, _Mapping]] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelUtterance(_message.Message):
    __slots__ = ("utterance",)
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    def __init__(self, utterance: _Optional[int] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("utterance", "header", "audio", "end", "error")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    utterance: int
    header: Header
    audio: Audio
    end: End
    error: UtteranceError
    def __init__(self, utterance: _Optional[int] = ..., header: _Optional[_Union[Header, _Mapping]] = ..., audio: _Optional[_Union[Audio, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., error: _Optional[_Union[UtteranceError, _Mapping]] = ...) -> None: ...

class UtteranceError(_message.Message):
    __slots__ = ("code", "message", "reason", "heard_characters")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HEARD_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    reason: str
    heard_characters: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ..., heard_characters: _Optional[int] = ...) -> None: ...

class Utterance(_message.Message):
    __slots__ = ("request_id", "channel", "user_key", "voice", "text", "priority", "state", "starts_in_ms", "length_ms", "merged", "reason", "written", "voices", "heard_characters")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    USER_KEY_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTS_IN_MS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_MS_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    HEARD_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    channel: str
    user_key: str
    voice: str
    text: str
    priority: Priority
    state: UtteranceState
    starts_in_ms: float
    length_ms: float
    merged: int
    reason: str
    written: str
    voices: _containers.RepeatedScalarFieldContainer[str]
    heard_characters: int
    def __init__(self, request_id: _Optional[str] = ..., channel: _Optional[str] = ..., user_key: _Optional[str] = ..., voice: _Optional[str] = ..., text: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., state: _Optional[_Union[UtteranceState, str]] = ..., starts_in_ms: _Optional[float] = ..., length_ms: _Optional[float] = ..., merged: _Optional[int] = ..., reason: _Optional[str] = ..., written: _Optional[str] = ..., voices: _Optional[_Iterable[str]] = ..., heard_characters: _Optional[int] = ...) -> None: ...

class ListUtterancesRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListUtterancesResponse(_message.Message):
    __slots__ = ("utterances", "paused", "moderated", "paused_since")
    UTTERANCES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    MODERATED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_SINCE_FIELD_NUMBER: _ClassVar[int]
    utterances: _containers.RepeatedCompositeFieldContainer[Utterance]
    paused: _containers.RepeatedScalarFieldContainer[str]
    moderated: _containers.RepeatedScalarFieldContainer[str]
    paused_since: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, utterances: _Optional[_Iterable[_Union[Utterance, _Mapping]]] = ..., paused: _Optional[_Iterable[str]] = ..., moderated: _Optional[_Iterable[str]] = ..., paused_since: _Optional[_Iterable[float]] = ...) -> None: ...

class WatchQueueRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class QueueEvent(_message.Message):
    __slots__ = ("utterances", "paused", "moderated", "paused_since")
    UTTERANCES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    MODERATED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_SINCE_FIELD_NUMBER: _ClassVar[int]
    utterances: _containers.RepeatedCompositeFieldContainer[Utterance]
    paused: _containers.RepeatedScalarFieldContainer[str]
    moderated: _containers.RepeatedScalarFieldContainer[str]
    paused_since: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, utterances: _Optional[_Iterable[_Union[Utterance, _Mapping]]] = ..., paused: _Optional[_Iterable[str]] = ..., moderated: _Optional[_Iterable[str]] = ..., paused_since: _Optional[_Iterable[float]] = ...) -> None: ...

class ListenRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListenResponse(_message.Message):
    __slots__ = ("paused", "begin", "audio", "end")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    paused: PausedChannels
    begin: UtteranceBegin
    audio: UtteranceAudio
    end: UtteranceEnd
    def __init__(self, paused: _Optional[_Union[PausedChannels, _Mapping]] = ..., begin: _Optional[_Union[UtteranceBegin, _Mapping]] = ..., audio: _Optional[_Union[UtteranceAudio, _Mapping]] = ..., end: _Optional[_Union[UtteranceEnd, _Mapping]] = ...) -> None: ...

class PausedChannels(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, channels: _Optional[_Iterable[str]] = ...) -> None: ...

class UtteranceBegin(_message.Message):
    __slots__ = ("utterance", "sample_rate_hertz", "playout", "words")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HERTZ_FIELD_NUMBER: _ClassVar[int]
    PLAYOUT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    utterance: Utterance
    sample_rate_hertz: int
    playout: Playout
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    def __init__(self, utterance: _Optional[_Union[Utterance, _Mapping]] = ..., sample_rate_hertz: _Optional[int] = ..., playout: _Optional[_Union[Playout, str]] = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ...) -> None: ...

class UtteranceAudio(_message.Message):
    __slots__ = ("request_id", "data", "sample_offset", "segment", "last", "words", "mouth")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    MOUTH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    data: bytes
    sample_offset: int
    segment: int
    last: bool
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    mouth: bytes
    def __init__(self, request_id: _Optional[str] = ..., data: _Optional[bytes] = ..., sample_offset: _Optional[int] = ..., segment: _Optional[int] = ..., last: bool = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ..., mouth: _Optional[bytes] = ...) -> None: ...

class UtteranceEnd(_message.Message):
    __slots__ = ("request_id", "reason", "samples", "words")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    samples: int
    words: _containers.RepeatedCompositeFieldContainer[WordTiming]
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., samples: _Optional[int] = ..., words: _Optional[_Iterable[_Union[WordTiming, _Mapping]]] = ...) -> None: ...

class CancelUtterancesRequest(_message.Message):
    __slots__ = ("request_ids", "user_key", "channel")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    USER_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    user_key: str
    channel: str
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., user_key: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class ChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ChannelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndedUtterances(_message.Message):
    __slots__ = ("utterances",)
    UTTERANCES_FIELD_NUMBER: _ClassVar[int]
    utterances: _containers.RepeatedCompositeFieldContainer[Utterance]
    def __init__(self, utterances: _Optional[_Iterable[_Union[Utterance, _Mapping]]] = ...) -> None: ...

class ApprovalRequest(_message.Message):
    __slots__ = ("channel", "request_ids")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, channel: _Optional[str] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ApprovedUtterances(_message.Message):
    __slots__ = ("utterances",)
    UTTERANCES_FIELD_NUMBER: _ClassVar[int]
    utterances: _containers.RepeatedCompositeFieldContainer[Utterance]
    def __init__(self, utterances: _Optional[_Iterable[_Union[Utterance, _Mapping]]] = ...) -> None: ...

class PreviewRequest(_message.Message):
    __slots__ = ("channel", "request_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    channel: str
    request_id: str
    def __init__(self, channel: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class PreviewResponse(_message.Message):
    __slots__ = ("audio",)
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    audio: bytes
    def __init__(self, audio: _Optional[bytes] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("name", "transcript", "consent_note", "created", "sha256", "size_bytes", "duration_s", "rms", "warnings", "pronunciations", "display_name", "state", "problem", "styles")
    class PronunciationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_NOTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    RMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STYLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    transcript: str
    consent_note: str
    created: str
    sha256: str
    size_bytes: int
    duration_s: float
    rms: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    pronunciations: _containers.ScalarMap[str, str]
    display_name: str
    state: VoiceState
    problem: str
    styles: _containers.RepeatedCompositeFieldContainer[Style]
    def __init__(self, name: _Optional[str] = ..., transcript: _Optional[str] = ..., consent_note: _Optional[str] = ..., created: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., duration_s: _Optional[float] = ..., rms: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ..., pronunciations: _Optional[_Mapping[str, str]] = ..., display_name: _Optional[str] = ..., state: _Optional[_Union[VoiceState, str]] = ..., problem: _Optional[str] = ..., styles: _Optional[_Iterable[_Union[Style, _Mapping]]] = ...) -> None: ...

class Style(_message.Message):
    __slots__ = ("name", "transcript", "consent_note", "created", "sha256", "size_bytes", "duration_s", "rms", "warnings", "state", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_NOTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    RMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    transcript: str
    consent_note: str
    created: str
    sha256: str
    size_bytes: int
    duration_s: float
    rms: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    state: VoiceState
    problem: str
    def __init__(self, name: _Optional[str] = ..., transcript: _Optional[str] = ..., consent_note: _Optional[str] = ..., created: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., duration_s: _Optional[float] = ..., rms: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[VoiceState, str]] = ..., problem: _Optional[str] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices", "next_page_token")
    VOICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[Voice]
    next_page_token: str
    def __init__(self, voices: _Optional[_Iterable[_Union[Voice, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetVoiceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateVoiceRequest(_message.Message):
    __slots__ = ("name", "audio", "transcript", "consent_note", "validate_only", "pronunciations", "display_name")
    class PronunciationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_NOTE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    audio: bytes
    transcript: str
    consent_note: str
    validate_only: bool
    pronunciations: _containers.ScalarMap[str, str]
    display_name: str
    def __init__(self, name: _Optional[str] = ..., audio: _Optional[bytes] = ..., transcript: _Optional[str] = ..., consent_note: _Optional[str] = ..., validate_only: bool = ..., pronunciations: _Optional[_Mapping[str, str]] = ..., display_name: _Optional[str] = ...) -> None: ...

class Pronunciations(_message.Message):
    __slots__ = ("words",)
    class WordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.ScalarMap[str, str]
    def __init__(self, words: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateVoiceRequest(_message.Message):
    __slots__ = ("name", "display_name", "pronunciations")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    display_name: str
    pronunciations: Pronunciations
    def __init__(self, name: _Optional[str] = ..., display_name: _Optional[str] = ..., pronunciations: _Optional[_Union[Pronunciations, _Mapping]] = ...) -> None: ...

class DeleteVoiceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteVoiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateStyleRequest(_message.Message):
    __slots__ = ("voice", "style", "audio", "transcript", "consent_note", "validate_only")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CONSENT_NOTE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    voice: str
    style: str
    audio: bytes
    transcript: str
    consent_note: str
    validate_only: bool
    def __init__(self, voice: _Optional[str] = ..., style: _Optional[str] = ..., audio: _Optional[bytes] = ..., transcript: _Optional[str] = ..., consent_note: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class DeleteStyleRequest(_message.Message):
    __slots__ = ("voice", "style")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    voice: str
    style: str
    def __init__(self, voice: _Optional[str] = ..., style: _Optional[str] = ...) -> None: ...

class DeleteStyleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
