"""Replies that the engine has spoken just now, and that are not silent."""

from __future__ import annotations

import secrets
from typing import Any

from appliance.client.blocking import Client
from appliance.client.failures import CallFailed
from appliance.client.messages import Reply

NO_VOICE = "no voice is stored; `appliance voices add` stores one"
AUDIBLE_PEAK = 100
"""Peak of 16-bit samples below which a reply is silence."""


def speak_anew(client: Client, text: str, voice: str, timeout: float, **options: Any) -> Reply:
    """Stream a reply in PCM16 that is in no cache. Raises CallFailed, also for silence."""
    # A seed that was used before might be answered from the phrase cache, without the engine.
    seed = secrets.randbits(32)
    reply = client.stream(text, voice, timeout=timeout, seed=seed, encoding="pcm16", **options).reply()
    check_audible(reply.audio_s, peak(reply.audio), voice)
    return reply


def check_audible(audio_s: float, loudest: int, voice: str) -> None:
    """Raise CallFailed for a reply without audio, and for silence."""
    if not audio_s:
        raise CallFailed("INTERNAL", "the daemon sent no audio")
    if loudest < AUDIBLE_PEAK:
        raise CallFailed("INTERNAL", f"it answered with silence in the voice {voice}")


def peak(audio: bytes) -> int:
    """Largest absolute sample of PCM16."""
    samples = memoryview(audio).cast("h")
    return max(max(samples, default=0), -min(samples, default=0))
