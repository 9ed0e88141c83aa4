from appliance.rpc import appliance_pb2 as _appliance_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("version", "state", "bundle", "family", "precision", "backend", "waiting", "running", "voices", "paused", "degraded", "log_level", "uptime_s", "passed_over")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: str
    bundle: str
    family: str
    precision: str
    backend: str
    waiting: int
    running: int
    voices: int
    paused: _containers.RepeatedScalarFieldContainer[str]
    degraded: str
    log_level: str
    uptime_s: float
    passed_over: _containers.RepeatedCompositeFieldContainer[_appliance_pb2.PassedOver]
    def __init__(self, version: _Optional[str] = ..., state: _Optional[str] = ..., bundle: _Optional[str] = ..., family: _Optional[str] = ..., precision: _Optional[str] = ..., backend: _Optional[str] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., voices: _Optional[int] = ..., paused: _Optional[_Iterable[str]] = ..., degraded: _Optional[str] = ..., log_level: _Optional[str] = ..., uptime_s: _Optional[float] = ..., passed_over: _Optional[_Iterable[_Union[_appliance_pb2.PassedOver, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadResponse(_message.Message):
    __slots__ = ("need_restart",)
    NEED_RESTART_FIELD_NUMBER: _ClassVar[int]
    need_restart: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, need_restart: _Optional[_Iterable[str]] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SelfTestRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SelfTestResponse(_message.Message):
    __slots__ = ("took_ms",)
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    took_ms: float
    def __init__(self, took_ms: _Optional[float] = ...) -> None: ...

class SwapBundleRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...
