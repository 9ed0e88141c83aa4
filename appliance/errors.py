"""What can go wrong, in the domain's words. `rpc/status.py` holds the one table to gRPC codes."""

from __future__ import annotations


class ApplianceError(Exception):
    """Base of every error that a caller may see; the message names what was wrong and what is allowed."""


class InvalidRequest(ApplianceError, ValueError):
    """A field of a request is out of range, missing or unreadable."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class InvalidReference(InvalidRequest):
    """Reference audio or its transcript cannot serve as a voice."""


class VoiceNotFound(ApplianceError, LookupError):
    """No voice of that name is stored."""


class VoiceExists(ApplianceError):
    """A voice of that name is stored already, with other content."""


class UnsupportedEncoding(ApplianceError):
    """An audio encoding that this build does not produce."""


class QueueFull(ApplianceError):
    """The waiting line has its configured length already."""


class DeadlineMissed(ApplianceError, TimeoutError):
    """The caller's deadline passed, or cannot be met."""


class Cancelled(ApplianceError):
    """The caller went away or asked to stop."""


class Unavailable(ApplianceError):
    """The daemon is starting or draining; the same call may succeed later."""


class ConfigError(ApplianceError, ValueError):
    """A configuration file cannot be used."""


class BundleError(ApplianceError):
    """A bundle is incomplete, damaged, or not for this version, backend or device."""


class StorageError(ApplianceError, OSError):
    """A folder of the daemon's cannot be read or written."""


class EngineFault(ApplianceError, RuntimeError):
    """The engine produced numbers that are not audio, or its runtime failed."""
