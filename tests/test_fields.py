"""The strict reader of mappings, and the declared ranges of fields."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from appliance.fields import AtLeast, Between, Ranged, from_mapping, to_plain
from tests.harness.rows import rows


@dataclass(frozen=True)
class Part:
    name: str


@dataclass(frozen=True)
class Whole(Ranged):
    lanes: Annotated[int, Between(1, 64)]
    loud: bool
    seed: Annotated[int | None, AtLeast(0)] = None
    level: Annotated[float, Between(0.0, 1.0)] = 0.5
    kind: Literal["a", "b"] = "a"
    place: Path = Path("/")
    parts: tuple[Part, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    notes: Any = None


def read(raw: object, **options: Any) -> Whole:
    whole: Whole = from_mapping(Whole, raw, where="file", error=ValueError, **options)
    return whole


def test_every_kind_of_field_is_read() -> None:
    raw = {"lanes": 8, "loud": True, "seed": None, "level": 1, "kind": "b", "place": "/tmp"}
    raw |= {"parts": [{"name": "one"}], "weights": {"main": 2}, "notes": [1, "two"]}
    found = read(raw)
    assert found == Whole(8, True, None, 1.0, "b", Path("/tmp"), (Part("one"),), {"main": 2.0}, [1, "two"])
    assert isinstance(found.level, float) and isinstance(found.weights["main"], float)
    assert read({"lanes": 8, "loud": False}) == Whole(8, False)


def test_plain_values_are_read_back() -> None:
    whole = Whole(8, True, 3, parts=(Part("one"), Part("two")), weights={"main": 0.5}, notes={"a": [1]})
    raw: Any = to_plain(whole)
    assert raw["parts"] == [{"name": "one"}, {"name": "two"}]
    assert read(raw) == whole


RIGHT = {"lanes": 8, "loud": True}


@pytest.mark.parametrize(("raw", "message"), [
    *rows(__file__, "fields_refused.jsonl"),
    ({"lanes": 8, "lane": 1, 2: 3}, "file: unknown key lane, 2; valid keys: lanes, loud, seed, level"),
    ({**RIGHT, "level": math.nan}, "file: level: must be between 0.0 and 1.0, not nan"),
    ({**RIGHT, "level": math.inf}, "file: level: must be between 0.0 and 1.0, not inf"),
    ({**RIGHT, "level": 10**400}, "file: level: is larger than any float"),
    ({"lanes": 10**400, "loud": True}, "file: lanes: must be between 1 and 64, not 1000"),
    ({"lanes": 1 << 20_000, "loud": True}, "file: lanes: must be between 1 and 64, not a int of too many"),
    ({**RIGHT, "loud": 1 << 20_000}, "file: loud: must be bool, not int (a int of too many digits)"),
    ({**RIGHT, 1 << 20_000: True}, "file: unknown key a int of too many digits; valid keys: lanes"),
    ({**RIGHT, "weights": {"x" * 10**6: "high"}}, "file: weights." + "x" * 200 + ": must be float, not str"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_place_and_the_allowed_values(raw: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(raw)
    assert str(caught.value).startswith(message)


def test_unknown_keys_are_ignored_if_that_is_allowed() -> None:
    assert read({"lanes": 8, "loud": True, "more": 1}, ignore_unknown=True) == Whole(8, True)


def test_ranges_hold_for_direct_construction_too() -> None:
    with pytest.raises(ValueError, match="lanes: must be between 1 and 64, not 0"):
        dataclasses.replace(Whole(1, True), lanes=0)


def test_messages_are_short_whatever_a_value_is() -> None:
    bomb: object = ["x"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    wrong: list[object] = [bomb, {"lanes": bomb}, {"lanes": "9" * 10**6}, {"x" * 10**6: 1}]
    wrong.append({f"key{n}": 1 for n in range(10_000)})
    for raw in wrong:
        with pytest.raises(ValueError) as caught:
            read(raw)
        assert len(str(caught.value)) < 1_000
