"""Errors of the domain, and the exit statuses of programs that end with one.

`rpc/status.py` has the one table from errors to gRPC codes, STATUSES the one to exit statuses.
"""

from __future__ import annotations

import enum
import errno


class Exit(enum.IntEnum):
    """Exit statuses of the daemon and the gateway, numbered as in sysexits.h."""

    OK = 0
    BUNDLE = 65
    ADDRESS_NOT_OURS = 68
    MEMORY = 69
    ENGINE = 70
    DEVICE = 71
    STORAGE = 74
    ADDRESS_IN_USE = 75
    CONFIG = 78


NO_MEMORY = (
    *("bad_alloc", "MemoryError", "allocate memory", "Unable to allocate", "start new thread"),
    *("pthread_create failed", "failed to map segment"),
)
"""Texts in messages of Python, numpy and ONNX Runtime that mean too little memory."""
NOT_RETRIED = (Exit.BUNDLE, Exit.STORAGE, Exit.CONFIG)
"""Statuses after which systemd does not start a unit again (RestartPreventExitStatus)."""


class ApplianceError(Exception):
    """Base of errors that a caller may see. The message names what was wrong and what is allowed."""

    retry_s: float | None = None
    """Seconds after which the same call may succeed; None: see the table of statuses."""


class InvalidRequest(ApplianceError, ValueError):
    """A field is out of range, missing or unreadable."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class InvalidReference(InvalidRequest):
    """Audio or transcript cannot serve as a voice."""


class Unauthenticated(ApplianceError):
    """The call has no token, or an unknown or revoked one."""


class AccessDenied(ApplianceError):
    """The token does not allow this call."""


class VoiceNotFound(ApplianceError, LookupError):
    """No voice with this name is stored."""


class VoiceExists(ApplianceError):
    """A voice with this name has other content."""


class UnsupportedEncoding(ApplianceError):
    """This build does not produce the audio encoding."""


class UnknownMethod(ApplianceError):
    """No service has the method."""


class StorageError(ApplianceError, OSError):
    """A folder of the daemon cannot be read or written."""


class VoiceDamaged(StorageError):
    """A stored voice cannot be read. Delete it, or create it again."""


class RequestNotFound(ApplianceError, LookupError):
    """No request with this id is under way."""


class ResourceExhausted(ApplianceError):
    """Base of refusals because of a limit. `retry_s`: seconds until a retry may succeed, if known."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class QueueFull(ResourceExhausted):
    """The queue has its configured length."""


class Overloaded(ResourceExhausted):
    """The request's deadlines cannot be met together with those of admitted requests."""


class RateLimited(ResourceExhausted):
    """The user or channel has sent more than its share."""


class TooManyCalls(ResourceExhausted):
    """The daemon or the connection has as many calls as are allowed."""


class UploadsFull(ResourceExhausted):
    """Too many uploads are under way."""


class Superseded(ApplianceError):
    """A later request had the same supersede key."""


class Merged(ApplianceError):
    """A later request with the same merge key speaks for this one, too."""


class Skipped(ApplianceError):
    """A moderator ended this request while it sounded."""


class Cleared(ApplianceError):
    """A moderator ended this request before it sounded."""


class Rejected(ApplianceError):
    """A moderator did not approve this request."""


class ReaderStalled(ApplianceError):
    """The caller stopped reading its stream."""


class DeadlineMissed(ApplianceError, TimeoutError):
    """The deadline passed, or cannot be met."""

    @classmethod
    def passed(cls, when: str) -> DeadlineMissed:
        """The deadline passed at some time; `when` is a clause such as "before the request arrived"."""
        return cls(f"the deadline passed {when}")

    @classmethod
    def too_soon(cls, needed_s: float, left_s: float) -> DeadlineMissed:
        return cls(f"takes {needed_s:.2f} s and the deadline is in {left_s:.2f} s")

    @classmethod
    def idle(cls, limit_s: float) -> DeadlineMissed:
        """The client of a stream has written nothing for `limit_s`."""
        return cls(f"nothing was written for {limit_s:g} s")


class Cancelled(ApplianceError):
    """The caller has gone, or cancelled the call."""


class Unavailable(ApplianceError):
    """The daemon is starting or draining."""


class ConfigError(ApplianceError, ValueError):
    """A configuration file cannot be used."""


class BundleError(ApplianceError):
    """A bundle is incomplete, damaged, or not for this version, backend or device."""


class PhonesMissing(ApplianceError):
    """The bundle's tokens need a program that is not installed."""


class Interrupted(Exception):
    """A call of the engine, or a build for it, was interrupted. It can be repeated."""


class EngineFault(ApplianceError, RuntimeError):
    """The engine's output is not audio, or its runtime failed."""


class OutOfDeviceMemory(EngineFault):
    """The device has too little free memory. Data on the device is not damaged."""


def lacks_memory(message: str) -> bool:
    return any(sign in message for sign in NO_MEMORY)


def engine_fault(message: str) -> EngineFault:
    """Error of a runtime, by its message."""
    return (OutOfDeviceMemory if lacks_memory(message) else EngineFault)(message)


class DeviceLost(EngineFault):
    """The device is gone for this process. Another process can use it."""


class AddressInUse(Exception):
    """Another process listens at the address."""


class AddressNotOurs(Exception):
    """No interface of this machine has the address."""


STATUSES: dict[type[Exception], Exit] = {
    ConfigError: Exit.CONFIG,
    BundleError: Exit.BUNDLE,
    StorageError: Exit.STORAGE,
    AddressInUse: Exit.ADDRESS_IN_USE,
    AddressNotOurs: Exit.ADDRESS_NOT_OURS,
    OutOfDeviceMemory: Exit.MEMORY,
    DeviceLost: Exit.DEVICE,
}
"""Error → exit status. Any other ApplianceError gives Exit.ENGINE."""


def status_of(error: Exception) -> Exit:
    """Exit status of a program that ends with this error."""
    if isinstance(error, MemoryError) or lacks_memory(str(error)):
        return Exit.MEMORY
    return next((code for kind, code in STATUSES.items() if isinstance(error, kind)), Exit.ENGINE)


def cannot_listen(key: str, address: str, error: OSError) -> AddressInUse | AddressNotOurs:
    """Error for an address, configured under `key`, that could not be bound."""
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressNotOurs(f"{key}: cannot listen on {address}: this machine has no such address")
    return AddressInUse(f"{key}: cannot listen on {address}: {error.strerror}")
