"""Stage directions of language models: [laugh], *waves*, (sighs), [happy], [pause:1s], （笑）."""

from __future__ import annotations

import re

from appliance.text.chat.lists import LISTS
from appliance.text.ssml import MAX_BREAK_S

_ACTIONS, _DOES, _SOUNDS = LISTS["actions"], frozenset(LISTS["does"]), frozenset(LISTS["sounds"])
_MOODS, _NO_ACTIONS = frozenset(LISTS["moods"]), frozenset(LISTS["no actions"])
_CHINESE = re.compile(
    r"(?:大|苦|微|冷|偷|坏|傻|轻|小声|低声|轻声|长长|深深|清|深|哭|一声)*(?:笑|叹气|叹息|咳嗽|咳|哭|哭泣|沉默|鼓掌|嗓子|耳语|呼吸|吸气|打哈欠|开心|生气|难过|激动|温柔)(?:了?一?声|着)?"
)
_PAUSE = re.compile(
    r"(?:(?:long|short|brief|dramatic|small)\s+)?(?:pauses?|break|silence|beat|停顿|暂停)"
    r"(?:[\s:=]*(\d{1,6}(?:\.\d{1,3})?)\s?(ms|milliseconds?|s|secs?|seconds?|毫秒|秒)?)?",
    re.IGNORECASE,
)
PAUSE_S = 0.5
"""Seconds of a pause that states no length."""


def pause_s(inside: str) -> float | None:
    """Seconds of the pause that these words request; None for other words."""
    match = _PAUSE.fullmatch(inside.strip())
    if not match:
        return None
    if not match[1]:
        return PAUSE_S
    is_milliseconds = (match[2] or "").lower().startswith(("m", "毫"))
    return min(float(match[1]) / (1_000.0 if is_milliseconds else 1.0), MAX_BREAK_S)


def is_direction(inside: str, bracket: str, before: str, after: str) -> bool:
    """True if words in brackets or asterisks are a stage direction.

    `before` and `after` are the text around them.
    """
    if _CHINESE.fullmatch(inside.strip()):
        return True
    words = inside.lower().split()
    if not 1 <= len(words) <= 8 or not re.fullmatch(r"[A-Za-z' ,-]+", inside):
        return False
    verb = words[1] if len(words) > 1 and words[0].endswith("ly") else words[0]
    verb = verb.rstrip(",")
    if verb in _DOES:
        return True
    if bracket in "[【<" and (len(words) == 1 or words[-1] in _SOUNDS):
        return words[0] in _MOODS or words[-1] in _SOUNDS or words[0] in _ACTIONS
    if len(words) == 1 and words[0] in _SOUNDS and bracket != "*":
        return True
    if bracket != "*":
        return False
    # Asterisks enclose actions and stressed words. An action is a whole sentence.
    alone = re.search(r"(?:^|[.!?…*\n])\s*$", before) and re.match(r"\s*(?:$|[A-Z\n\"*])|[.!?]", after)
    if not alone:
        return len(words) == 1 and words[0] in _SOUNDS - {"laugh", "hug", "music", "silence", "breath"}
    return (
        verb in _ACTIONS
        or words[0] in _SOUNDS
        or (verb.endswith("s") and not verb.endswith("ss") and verb not in _NO_ACTIONS and len(verb) > 3)
    )
