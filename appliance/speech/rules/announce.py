"""Announcements: speaks the name of a user before a line, if the channel has not said it for a while. Drops
the lines of silent users.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import chain
from typing import Any

from appliance.config import ChannelRow
from appliance.errors import InvalidRequest
from appliance.request import SpokenText, Terms
from appliance.scheduler.job import State, Utterance
from appliance.scheduler.queue import Queue
from appliance.speech.wish import Wish
from appliance.text.chat.chat import tidied
from appliance.text.sayable import FrontEnd
from appliance.voices.index import VoiceIndex


def announced(front: FrontEnd, voices: VoiceIndex, queue: Queue, wish: Wish, line: SpokenText) -> SpokenText:
    """Put the user's name before a line, if it is due; leave out the text of a silent user.

    Raises InvalidRequest for an announcement of nobody.
    """
    terms, user = wish.terms, _plain(wish.terms.user)
    row = front.choices.channels.get(terms.channel, ChannelRow())
    if user and user in map(_plain, row.silent):
        return SpokenText("", skipped_reason="its user is on the silent list of its channel")
    if wish.announce and not user:
        raise InvalidRequest("announce", "needs a user, whose line it announces")
    if not (wish.announce and line.text) or wish.goes_on or _is_known(queue, terms, row.announce_pause_s):
        return line
    # The front end reads @user_name99 as a name.
    name = re.sub(r"^@*(?=\w)", "@", terms.user)
    words = {**voices.pronunciations(wish.voice), **wish.pronunciations}
    if not front.speakable(name, words=words, language=wish.language_code).text:
        return line
    written = wish.announce.replace("{user}", name)
    announcement = front.speakable(written, words=words, language=wish.language_code).text
    opening = announcement + ":" * announcement[-1:].isalnum()
    text = tidied(f"{opening} {line.text}")
    later = len(text) - len(line.text)

    def moved(marks: Any) -> Any:
        return tuple(replace(one, after=one.after + later) for one in marks)

    marks = moved(line.pauses), moved(line.directions), moved(line.switches)
    return SpokenText(text, line.changes, *marks, opening)


def _plain(user: str) -> str:
    return user.strip().removeprefix("@").casefold()


def _whose(terms: Terms) -> tuple[str, str]:
    """Player and user of a line."""
    return terms.channel or terms.client, _plain(terms.user)


def _is_known(queue: Queue, terms: Terms, pause_s: float) -> bool:
    """True if the channel has said the user's name within the pause, or is about to say it."""

    def says_it(one: Utterance) -> bool:
        waits = one.state in (State.WAITING, State.HELD) and not terms.replaces(one.job.terms)
        was_heard = one.state is State.SOUNDING or one.heard_s > 0.0
        is_new = was_heard and time.monotonic() - one.starts < pause_s
        return bool(one.job.request.opening) and _whose(one.job.terms) == _whose(terms) and (waits or is_new)

    return any(map(says_it, chain(*queue.utterances()[:2])))
