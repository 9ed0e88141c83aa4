"""Services beside those of appliance.proto, where their messages are installed: NVIDIA Riva's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from google.protobuf.runtime_version import VersionError

from appliance.rpc.synthesizer import SynthesizerService
from appliance.voices.prompts import Prompts
from appliance.voices.store import VoiceStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtraService:
    """A service that is not in appliance.proto."""

    name: str
    """Full gRPC name of the service."""
    add: Callable[[grpc.aio.Server], None]


def extra_services(
    synthesizer: SynthesizerService, store: VoiceStore, prompts: Prompts
) -> tuple[ExtraService, ...]:
    try:
        from appliance.rpc import riva
    # Riva's messages refuse a grpcio and a protobuf that are older than their compilers with other errors.
    except (ImportError, RuntimeError, VersionError) as error:
        logger.info("Riva's clients are not served (extra riva): %s", error)
        return ()
    return (riva.service(synthesizer, store, prompts),)
