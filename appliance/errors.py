"""Errors of the domain, and the exit statuses of what ends by one.

`rpc/status.py` holds the one table to gRPC codes, STATUSES that to exit statuses.
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
"""Texts in messages of Python, numpy and ONNX Runtime for which there was too little memory."""
NOT_RETRIED = (Exit.BUNDLE, Exit.STORAGE, Exit.CONFIG)
"""Statuses after which systemd does not start again: RestartPreventExitStatus of the units."""


class ApplianceError(Exception):
    """Base of errors that a caller may see; the message says what was wrong and what is allowed."""

    retry_s: float | None = None
    """Seconds after which the same call may succeed; None: by the table."""


class InvalidRequest(ApplianceError, ValueError):
    """A field is out of range, missing or unreadable."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class InvalidReference(InvalidRequest):
    """Audio or transcript cannot serve as a voice."""


class Unauthenticated(ApplianceError):
    """No token, or one that is unknown or revoked."""


class AccessDenied(ApplianceError):
    """The token does not allow this call."""


class VoiceNotFound(ApplianceError, LookupError):
    """No such voice is stored."""


class VoiceExists(ApplianceError):
    """A voice of that name has other content."""


class UnsupportedEncoding(ApplianceError):
    """This build does not produce the audio encoding."""


class UnknownMethod(ApplianceError):
    """No service has the method."""


class StorageError(ApplianceError, OSError):
    """A folder of the daemon's cannot be read or written."""


class VoiceDamaged(StorageError):
    """A stored voice cannot be read; deleting or creating it anew mends that."""


class RequestNotFound(ApplianceError, LookupError):
    """No request of that id is under way."""


class ResourceExhausted(ApplianceError):
    """Base of refusals for want of room. `retry_s`: seconds until there is some, if known."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class QueueFull(ResourceExhausted):
    """The queue has its configured length."""


class Overloaded(ResourceExhausted):
    """The request does not fit beside what was admitted."""


class RateLimited(ResourceExhausted):
    """The user or channel has sent more than its share."""


class TooManyCalls(ResourceExhausted):
    """The daemon or connection has all calls that are allowed."""


class UploadsFull(ResourceExhausted):
    """Too many uploads are under way."""


class Superseded(ApplianceError):
    """A later request had the same supersede key."""


class Merged(ApplianceError):
    """A later request with the same merge key speaks for this one."""


class Skipped(ApplianceError):
    """A moderator ended this request while it sounded."""


class Cleared(ApplianceError):
    """A moderator ended this request before it was heard."""


class Rejected(ApplianceError):
    """A moderator did not approve this request."""


class ReaderStalled(ApplianceError):
    """The caller stopped reading its stream."""


class DeadlineMissed(ApplianceError, TimeoutError):
    """The deadline passed, or cannot be met."""

    @classmethod
    def passed(cls, when: str) -> DeadlineMissed:
        """`when` is a clause such as "before the request arrived"."""
        return cls(f"the deadline passed {when}")

    @classmethod
    def too_soon(cls, needed_s: float, left_s: float) -> DeadlineMissed:
        return cls(f"takes {needed_s:.2f} s and the deadline is in {left_s:.2f} s")

    @classmethod
    def idle(cls, limit_s: float) -> DeadlineMissed:
        """The client of a stream has written nothing for `limit_s`."""
        return cls(f"nothing was written for {limit_s:g} s")


class Cancelled(ApplianceError):
    """The caller went away or asked to stop."""


class Unavailable(ApplianceError):
    """The daemon is starting or draining."""


class ConfigError(ApplianceError, ValueError):
    """A configuration file cannot be used."""


class BundleError(ApplianceError):
    """A bundle is incomplete, damaged, or not for this version, backend or device."""


class PhonesMissing(ApplianceError):
    """The bundle's tokens need a program that is not installed."""


class Interrupted(Exception):
    """A call of the engine, or a build for it, was interrupted; it can be repeated."""


class EngineFault(ApplianceError, RuntimeError):
    """The engine's numbers are not audio, or its runtime failed."""


class OutOfDeviceMemory(EngineFault):
    """The device has too little memory left; what it holds is whole."""


def lacks_memory(message: str) -> bool:
    return any(sign in message for sign in NO_MEMORY)


def engine_fault(message: str) -> EngineFault:
    """Error of a runtime's message."""
    return (OutOfDeviceMemory if lacks_memory(message) else EngineFault)(message)


class DeviceLost(EngineFault):
    """The device is gone for this process; another can use it again."""


class AddressInUse(Exception):
    """Another process listens there already."""


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
"""Any other ApplianceError exits with Exit.ENGINE."""


def status_of(error: Exception) -> Exit:
    """Exit status of a program that an error ends."""
    if isinstance(error, MemoryError) or lacks_memory(str(error)):
        return Exit.MEMORY
    return next((code for kind, code in STATUSES.items() if isinstance(error, kind)), Exit.ENGINE)


def cannot_listen(key: str, address: str, error: OSError) -> AddressInUse | AddressNotOurs:
    """Error for an address, configured under `key`, that could not be bound."""
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressNotOurs(f"{key}: cannot listen on {address}: this machine has no such address")
    return AddressInUse(f"{key}: cannot listen on {address}: {error.strerror}")
