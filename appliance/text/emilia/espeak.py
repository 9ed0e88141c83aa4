"""Program: lines of JSON texts on standard input → JSON lists of [phones, text read] of their clauses.

Apart from the package and with the standard library alone, so that what loads libespeak-ng, which is under
the GPL and reads in C what strangers write, is a process of its own. The first line that it prints is
{"version": …}, or {"missing": why} before it ends.
"""

import ctypes
import json
import signal
import sys
from typing import Any

LIBRARY = "libespeak-ng.so.1"
VOICE = b"en-us"
SYNCHRONOUS, DONT_EXIT, UTF_8, IPA = 2, 1 << 15, 1, 2
"""Values that speak_lib.h names."""
MOST_S = 20
"""Time for a text, in which millions of characters are read; then the process is ended, in C too."""


def opened() -> Any:
    """The library, ready. Raises OSError."""
    library = ctypes.CDLL(LIBRARY)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_Info.restype = ctypes.c_char_p
    if library.espeak_Initialize(SYNCHRONOUS, 0, None, DONT_EXIT) <= 0:
        raise OSError(f"{LIBRARY} does not find its data (espeak-ng-data)")
    if library.espeak_SetVoiceByName(VOICE) != 0:
        raise OSError(f"{LIBRARY} has no voice {VOICE.decode()} (espeak-ng-data)")
    return library


def clauses(library: Any, text: str) -> list[tuple[str, str]]:
    """(phones, text read) of each clause; the last character read begins the next, the last of all is NUL."""
    given = text.encode("utf-8", "replace") + b"\0"
    held = ctypes.create_string_buffer(given)
    begin = ctypes.addressof(held)
    place = ctypes.c_void_p(begin)
    found, read = [], 0
    while place.value is not None:
        phones = library.espeak_TextToPhonemes(ctypes.byref(place), UTF_8, IPA) or b""
        end = len(given) if place.value is None else place.value - begin
        found.append((phones.decode("utf-8", "replace"), given[read:end].decode("utf-8", "replace")))
        read = end
    # It may keep a character that it has looked at, and would read it before the next text.
    nothing = ctypes.c_void_p(begin + len(given) - 1)
    library.espeak_TextToPhonemes(ctypes.byref(nothing), UTF_8, IPA)
    return found


def main() -> None:
    # It ends when its input does: while a service stops, texts may still come.
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
        answer = json.dumps(clauses(library, json.loads(line)))
        signal.alarm(0)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
