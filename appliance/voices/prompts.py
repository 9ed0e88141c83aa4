"""Audio prompts: references that come with a request.

They stay in memory for a while and are never stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from appliance.errors import InvalidRequest, UploadsFull
from appliance.request import Reference
from appliance.voices.index import VoiceIndex

KEPT = 16
"""Prompts in memory, of up to 1.6 MB each. Prompts of running requests do not count."""
TRANSCRIPTS = 1_024
"""Transcripts in memory, by the hash of their audio."""
WAITING = 4
"""Prompts that may wait while another is prepared."""
BELOW_ENGINE = 10
"""Nice value of threads that prepare references. A smaller value takes more time from speech.

With this value the threads get a tenth of a core that also computes speech.
"""


class Prompts:
    """Prompts, by names that no stored voice can have. Used on the event loop only."""

    def __init__(self, index: VoiceIndex) -> None:
        self._index = index
        self._by_name: WeakValueDictionary[str, Reference] = WeakValueDictionary()
        self._recent: deque[Reference] = deque(maxlen=KEPT)
        self._transcripts: OrderedDict[str, str] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prompt", initializer=run_below_engine)
        self._preparing = 0

    def reference(self, voice: str, style: str = "") -> Reference:
        """Reference of a prompt or a stored voice. Raises what VoiceIndex.reference raises."""
        prompt = self._by_name.get(voice)
        if prompt is not None and style:
            raise InvalidRequest("style", "an audio prompt has none: it is one recording")
        return prompt or self._index.reference(voice, style)

    async def transcript_of(self, audio: bytes) -> str:
        """Transcript of an earlier prompt or stored voice with this audio, or ""."""
        sha256 = hashlib.sha256(audio).hexdigest()
        if sha256 in self._transcripts:
            self._transcripts.move_to_end(sha256)
            return self._transcripts[sha256]
        same = await asyncio.to_thread(self._index.with_audio, sha256)
        return same.transcript if same else ""

    async def prepare(self, audio: bytes, transcript: str) -> tuple[str, Reference]:
        """Prepare a prompt. `reference` finds its name as long as the caller holds the result.

        Raises InvalidReference, UploadsFull.
        """
        sha256 = hashlib.sha256(audio).hexdigest()
        name = f"prompt:{sha256[:16]}:{hashlib.sha256(transcript.encode()).hexdigest()[:16]}"
        reference = self._by_name.get(name)
        if reference is None:
            if self._preparing > WAITING:
                raise UploadsFull(f"{WAITING} audio prompts wait already, which is the limit")
            self._preparing += 1
            try:
                run = asyncio.get_running_loop().run_in_executor
                reference = await run(self._pool, self._index.unstored, audio, transcript)
            finally:
                self._preparing -= 1
            # Another call with the same prompt may have been faster.
            reference = self._by_name.setdefault(name, reference)
            self._recent.append(reference)
        self._transcripts[sha256] = transcript
        while len(self._transcripts) > TRANSCRIPTS:
            self._transcripts.popitem(last=False)
        return name, reference


def run_below_engine() -> None:
    """Lower this thread's priority below the engine's threads.

    SCHED_IDLE would disturb speech less. But if other programs compute on every core, such a thread never
    ends, and the daemon waits while it holds the interpreter's lock.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BELOW_ENGINE)
