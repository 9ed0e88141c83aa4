"""Containers of audio files: recognised by their first bytes, and checked for completeness.

The decoder reads 25 containers, most of them rare, and accepts a file that ends too early as a shorter one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from appliance.errors import InvalidReference

FIELD = "audio"
FORMATS = "wav, flac, ogg or mp3"
UNSAID = "does not say how long it is: save it once more as a file, not a stream"

MOST_TAGS, MOST_PARTS = 64, 4_096
"""Limits for one file: tags before it, and its chunks, pages or frames. No file of a minute has more."""
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
"""Data sizes in WAV headers that mean an unknown length."""
_PAGE_BYTES, _FIRST, _LAST = 27, 2, 4
"""Size of an Ogg page's header before its table of segments; flags of a stream's first and last page."""
_KBIT_S = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_KBIT_S[0] = _KBIT_S[2]
"""MPEG's version → bit rates of layer III. Version 3 is MPEG 1, 2 is MPEG 2, 0 is MPEG 2.5."""
_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_COUNTS = (b"Xing", b"Info", b"VBRI")
"""Names of the tag in the first frame that states the number of frames."""
_COUNT_WITHIN = 64


def untagged(audio: bytes) -> bytes:
    """The file without the ID3v2 tags before it. Raises InvalidReference if there are too many."""
    place = tags = 0
    while audio[place : place + 3] == b"ID3" and len(audio) >= place + 10:
        if (tags := tags + 1) > MOST_TAGS:
            raise InvalidReference(FIELD, f"has more than {MOST_TAGS} tags in front: save it without")
        size = 0
        for byte in audio[place + 6 : place + 10]:
            size = size << 7 | byte & 0x7F
        footer = 10 if audio[place + 5] & 0x10 else 0
        place += 10 + size + footer
    return audio[place:]


def check_whole(audio: bytes) -> None:
    """Raise InvalidReference for a file that is no WAV, FLAC, Ogg or MP3, or is cut off.

    A cut-off FLAC, or MP3 with a count of frames, is noticed later, by its number of decoded samples.
    """
    if (check := _check_of(audio)) is None:
        raise InvalidReference(
            FIELD, f"is not audio that can be read (it begins with {audio[:8]!r}): send {FORMATS}"
        )
    check(audio)


def least_samples(audio: bytes) -> int | None:
    """Fewest samples of one channel in an MP3 that does not state them; None for any other file."""
    if _check_of(audio) is not _check_mp3 or any(name in audio[:_COUNT_WITHIN] for name in _COUNTS):
        return None
    frames, samples, _ = _mp3_frames(audio)
    # The decoder, which guesses, loses up to a frame.
    return (frames - 1) * samples


def cut_off(how: str) -> InvalidReference:
    return InvalidReference(FIELD, f"is cut off: {how}; send the whole file")


def _check_of(audio: bytes) -> Callable[[bytes], None] | None:
    if audio[:4] in (b"RIFF", b"RIFX", b"RF64") and audio[8:12] == b"WAVE":
        return _check_wav
    if audio[:4] == b"fLaC":
        return lambda audio: None
    if audio[:4] == b"OggS":
        return _check_ogg
    is_mpeg = len(audio) >= 4 and audio[0] == 0xFF and audio[1] & 0xE0 == 0xE0 and audio[1] & 6
    return _check_mp3 if is_mpeg else None


def _check_wav(audio: bytes) -> None:
    """Raise InvalidReference if a WAV file has fewer samples than its header promises."""
    position, chunk = 12, struct.Struct(">4sI" if audio.startswith(b"RIFX") else "<4sI")
    large = chunks = 0
    while position + chunk.size <= len(audio):
        chunks = _counted(chunks)
        name, size = chunk.unpack_from(audio, position)
        position += chunk.size
        if name == b"ds64" and position + 16 <= len(audio):
            _, large = struct.unpack_from("<QQ", audio, position)
        if name == b"data":
            promised = large if audio.startswith(b"RF64") and size == 0xFFFFFFFF else size
            present = len(audio) - position
            if promised not in _UNKNOWN_SIZES and present < promised:
                raise cut_off(f"{present} of {promised} bytes of samples are present")
            return
        position += size + size % 2


def _counted(parts: int) -> int:
    """Count one more part. Raises InvalidReference beyond MOST_PARTS."""
    if parts >= MOST_PARTS:
        raise InvalidReference(FIELD, f"has more than {MOST_PARTS:,} chunks or pages: save it once more")
    return parts + 1


def _check_ogg(audio: bytes) -> None:
    """Check that each stream ends with a page marked as last (RFC 3533).

    The streams of one recording begin together.
    """
    ended: dict[bytes, bool] = {}
    begun = False
    place = pages = 0
    while (place := audio.find(b"OggS", place)) >= 0:
        pages = _counted(pages)
        segments = place + _PAGE_BYTES
        body = segments + audio[segments - 1] if segments <= len(audio) else segments
        end = body + sum(audio[segments:body])
        if end > len(audio):
            raise cut_off("its last page is incomplete")
        flags = audio[place + 5]
        if flags & _FIRST and begun:
            raise InvalidReference(FIELD, "holds several recordings, one after another: send one")
        begun = begun or not flags & _FIRST
        ended[audio[place + 14 : place + 18]] = bool(flags & _LAST)
        place = end
    if not all(ended.values()):
        raise cut_off("its stream has no last page (if its recorder wrote none, save it once more)")


def _check_mp3(audio: bytes) -> None:
    if _mp3_frames(audio)[2] > len(audio):
        raise cut_off("its last frame is incomplete")


def _mp3_frames(audio: bytes) -> tuple[int, int, int]:
    """(frames, samples of one, end) of the layer III frames from the first on. The last may be cut off."""
    frames = place = 0
    kind = audio[1] & 0xFE, audio[2] & 0x0C
    version = audio[1] >> 3 & 3
    samples = 1152 if version == 3 else 576
    while frames <= MOST_PARTS and place + 4 <= len(audio) and audio[place] == 0xFF:
        bits, rate = audio[place + 2] >> 4, audio[place + 2] >> 2 & 3
        same = (audio[place + 1] & 0xFE, audio[place + 2] & 0x0C) == kind
        if not same or version == 1 or kind[0] & 6 != 2 or not 0 < bits < 15 or rate == 3:
            break
        bytes_a_frame = samples // 8 * 1000 * _KBIT_S[version][bits] // _RATES_HZ[version][rate]
        place += bytes_a_frame + (audio[place + 2] >> 1 & 1)
        frames += 1
    return frames, samples, place
