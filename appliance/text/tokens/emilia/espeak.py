"""Program: lines of JSON [voice, text] on standard input → JSON lists of their clauses [phones, text read].

It is a separate process with the standard library alone, because libespeak-ng is under the GPL, and reads
strangers' texts in C. Its first line is {"version": …}, or {"missing": reason} before it ends. For a voice
that the library lacks, the answer is {"languages": [[languages of a voice], …]}.
"""

import ctypes
import functools
import json
import signal
import sys
from typing import Any

LIBRARY = "libespeak-ng.so.1"
VOICE = "en-us"
SYNCHRONOUS, DONT_EXIT, UTF_8, IPA = 2, 1 << 15, 1, 2
"""Constants of speak_lib.h."""
MOST_S = 20
"""Longest time for a text, in seconds, enough for millions of characters. The process then ends, even inside
C code.
"""


class EspeakVoice(ctypes.Structure):
    """The struct `espeak_VOICE`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("kind", ctypes.c_ubyte * 4),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


def opened() -> Any:
    """The library, initialised. Raises OSError."""
    library = ctypes.CDLL(LIBRARY)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_Info.restype = ctypes.c_char_p
    library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(EspeakVoice))
    if library.espeak_Initialize(SYNCHRONOUS, 0, None, DONT_EXIT) <= 0:
        raise OSError(f"{LIBRARY} does not find its data (espeak-ng-data)")
    if not choose(library, VOICE):
        raise OSError(f"{LIBRARY} has no voice {VOICE} (espeak-ng-data)")
    return library


@functools.cache
def languages(library: Any) -> list[list[str]]:
    """Languages of each voice, its own language first."""
    rows = []
    voices = library.espeak_ListVoices(None)
    place = 0
    while voices[place]:
        voice = voices[place].contents
        at, names = voice.languages, []
        while ctypes.c_ubyte.from_address(at).value:  # a priority, then the name up to NUL
            name = ctypes.string_at(at + 1)
            names.append(name.decode("utf-8", "replace").lower())
            at += len(name) + 2
        if names and not voice.identifier.startswith(b"mb/"):  # of another program, MBROLA
            rows.append(names)
        place += 1
    return rows


def choose(library: Any, voice: str) -> bool:
    """Set the voice as `espeak-ng -v` does: by its name, else by a further language of it, as en-gb."""
    name = voice.encode()
    if library.espeak_SetVoiceByName(name) == 0:
        return True
    if not any(voice in names for names in languages(library)):
        return False
    buffer = ctypes.create_string_buffer(name)
    properties = EspeakVoice(languages=ctypes.addressof(buffer))
    return bool(library.espeak_SetVoiceByProperties(ctypes.byref(properties)) == 0)


def clauses(library: Any, text: str) -> list[tuple[str, str]]:
    """(phones, text read) of each clause.

    The last character read begins the next clause; the very last is NUL.
    """
    data = text.encode("utf-8", "replace") + b"\0"
    buffer = ctypes.create_string_buffer(data)
    begin = ctypes.addressof(buffer)
    place = ctypes.c_void_p(begin)
    pairs, start = [], 0
    while place.value is not None:
        phones = library.espeak_TextToPhonemes(ctypes.byref(place), UTF_8, IPA) or b""
        end = len(data) if place.value is None else place.value - begin
        pairs.append((phones.decode("utf-8", "replace"), data[start:end].decode("utf-8", "replace")))
        start = end
    # The library may hold back a character, and would read it before the next text.
    nothing = ctypes.c_void_p(begin + len(data) - 1)
    library.espeak_TextToPhonemes(ctypes.byref(nothing), UTF_8, IPA)
    return pairs


def answer(library: Any, voice: str, text: str) -> object:
    # The voice is set for each text, because 1.51 stays in the voice of a foreign sign, such as a tone
    # letter.
    if not choose(library, voice):
        return {"languages": languages(library)}
    return clauses(library, text)


def main() -> None:
    # The program ends when its input does, because texts may still come while a service stops.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        library = opened()
    except OSError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"version": library.espeak_Info(None).decode().split()[0]}), flush=True)
    for line in sys.stdin.buffer:
        signal.alarm(MOST_S)
        reply = json.dumps(answer(library, *json.loads(line)))
        signal.alarm(0)
        print(reply, flush=True)


if __name__ == "__main__":
    main()
