"""Parameters of a request, from JSON or a query. Errors name the parameter and its type or range."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypeVar

from anyio import fail_after
from starlette.requests import Request

from appliance.gateway.refusals import Refusal
from appliance.options import BY_FIELD, OPTIONS, Option, OptionKind, Options

N = TypeVar("N", int, float)
SHOWN_CHARACTERS = 60
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
COMMON = tuple(option for option in OPTIONS if option.http)
"""Options that every API has."""
FOREIGN = ("user_id", "aux_ref_audio_paths")
"""Parameters of other servers that resemble ours, and are no typing errors."""
MAX_COMPARED, LONGEST_NAME = 64, 64
"""Number of parameters that are compared with ours, and longest name of such a parameter."""
ANY_SEED = -1
"""Seed by which GPT-SoVITS's clients ask for a random one."""
ALIKE = 0.8
"""Smallest similarity of a misspelt parameter (difflib's ratio)."""
COMMON_NAMES: Mapping[str, str] = {option.field: option.http for option in COMMON}
"""Field of the gRPC request → parameter of every API of the gateway."""


def _plain(name: str) -> str:
    """Name in small letters: maxSpokenSeconds, max-spoken-seconds → maxspokenseconds."""
    return name.lower().replace("_", "").replace("-", "")


GRPC_NAMES = frozenset(map(_plain, ("text", "voice", "audio_config", *Options.__annotations__)))
"""Fields of the gRPC request, and options of its client."""


class Fields:
    """Parameters of a request. None stands for an absent one. Each method raises Refusal."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def beside(self, more: Mapping[str, Any]) -> Fields:
        """Parameters of this request, completed with parameters of `more`."""
        return Fields({**more, **self._parameters})

    def get(self, name: str) -> Any:
        return self._parameters.get(name)

    def text(self, name: str) -> str | None:
        """A string, without the code points that UTF-8 cannot encode."""
        value = self._parameters.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise invalid(name, f"must be a string, not {shown(value)}")
        # Programs that cut a message by UTF-16 units cut emoji in two, which leaves half a surrogate pair.
        return value.encode(errors="ignore").decode()

    def to_speak(self, name: str) -> str:
        """A text that must be present. Raises Refusal."""
        text = self.text(name)
        if text is None:
            raise invalid(name, "is missing: the text to speak")
        return text

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number, which may be written as a string."""
        return self._number(name, float, least, most, f"a number from {least:g} to {most:g}")

    def whole(self, name: str, least: int, most: int) -> int | None:
        """A whole number, which may be written as a string."""
        return self._number(name, int, least, most, f"a whole number from {least} to {most}")

    def _number(self, name: str, kind: type[N], least: float, most: float, what: str) -> N | None:
        """A number within limits; None if the field is absent or empty."""
        value = self._parameters.get(name)
        if value is None or value == "":
            return None
        try:
            is_whole = not isinstance(value, float) or value.is_integer()
            fits = not isinstance(value, bool) and (is_whole or kind is float)
            number = kind(value) if fits else None
        except (TypeError, ValueError, OverflowError):
            number = None
        # The condition is written so that it refuses NaN.
        if number is None or not least <= number <= most:
            raise invalid(name, f"must be {what}, not {shown(value)}")
        return number

    def format(self, name: str, allowed: Iterable[str]) -> str | None:
        is_aac = str(self._parameters.get(name)).lower() == "aac"
        return self.choice(name, allowed, "; nothing on this machine writes AAC" if is_aac else "")

    def choice(self, name: str, allowed: Iterable[str], hint: str = "") -> str | None:
        """A word of `allowed`, in any case. `hint` ends the error message."""
        value = self._parameters.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or value.lower() not in allowed:
            raise invalid(name, f"must be one of {', '.join(allowed)}, not {shown(value)}{hint}")
        return value.lower()

    def flag(self, name: str) -> bool:
        """True or false, which may be written as a number or a word. An absent one is false."""
        word = str(self._parameters.get(name) or "").lower()
        if word not in TRUE and word not in FALSE and not (word.isascii() and word.isdigit()):
            raise invalid(name, f"must be true or false, not {shown(self._parameters[name])}")
        return word not in FALSE

    def option(self, option: Option, name: str) -> Any:
        """Value of an option, from the parameter of that name."""
        if option.kind is OptionKind.CHOICE:
            return self.choice(name, option.choices)
        if option.kind is OptionKind.FLAG:
            return self.flag(name)
        if option.between is None:
            return self.text(name)
        least, most = option.between
        if option.kind is OptionKind.WHOLE:
            return self.whole(name, ANY_SEED if option.field == "seed" else int(least), int(most))
        return self.number(name, least, most)

    def speed(self, name: str) -> float | None:
        speed: float | None = self.option(BY_FIELD["audio_config.speaking_rate"], name)
        return speed

    def common(self) -> Options:
        """Options from the parameters that every API has."""
        options: Options = {}
        for option in COMMON:
            options[option.name] = self.option(option, option.http)  # type: ignore[literal-required]
        if options["seed"] == ANY_SEED:
            options["seed"] = None
        if not options["channel"] and not options["playout"]:
            # All requests share one gRPC connection: without a channel they would wait for each other.
            options["playout"] = "overlap"
        return options

    def not_read(self, own: Iterable[str]) -> list[str]:
        """Parameters without effect that resemble `own` or COMMON, or belong to gRPC."""
        own_names = (*own, *(option.http for option in COMMON))
        plain = [_plain(name) for name in own_names]
        # A body may have thousands of parameters, and all requests share the event loop.
        short = (name for name in islice(self._parameters, MAX_COMPARED) if len(name) <= LONGEST_NAME)
        return [
            name
            for name in short
            if name not in (*own_names, *FOREIGN)
            and (_plain(name) in GRPC_NAMES or get_close_matches(_plain(name), plain, 1, ALIKE))
        ]


async def body_parts(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """Yield a body in parts. Raises Refusal if it has more than `most` bytes."""
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refusal(413, f"the body has over {most} bytes", code="too_large")
        yield part


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise Refusal if the block takes longer than `limit_s`."""
    try:
        with fail_after(limit_s):
            yield
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {limit_s:g} s", code="timeout") from None


async def json_body(request: Request) -> Fields:
    """Read a JSON object from the body. Raises Refusal if it is too long, too slow, or no object."""
    limits = request.app.state.config.gateway
    body = bytearray()
    with within(limits.stall_s):
        async for part in body_parts(request, limits.max_body_bytes):
            body += part
    return Fields(json_object(bytes(body), "the body"))


def json_object(raw: str | bytes, what: str) -> dict[str, Any]:
    """JSON object in `raw`; errors call it `what`. Raises Refusal if it is no object."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"{what} is not JSON: {shown(str(error))}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} must be a JSON object, not {shown(value)}", code="invalid_json")
    return value


def invalid(name: str, message: str) -> Refusal:
    return Refusal(400, f"{name}: {message}", code="invalid_request", param=name)


def shown(value: object) -> str:
    """Value for an error message, shortened."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
