"""The table of a request's options against the protocol, and each kind of option at each API."""

import argparse
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from appliance.cli import saying
from appliance.errors import InvalidRequest
from appliance.gateway.body import Fields
from appliance.gateway.refusals import Refusal
from appliance.options import MAX_KEY_CHARACTERS, OPTIONS, Option, OptionKind, Options
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import check_options

OWN = {"text", "voice", "audio_config"}
"""Fields that are no options."""
FIELD_TYPES = {
    FieldDescriptor.CPPTYPE_STRING: {OptionKind.TEXT, OptionKind.KEY},
    FieldDescriptor.CPPTYPE_UINT32: {OptionKind.WHOLE},
    FieldDescriptor.CPPTYPE_UINT64: {OptionKind.WHOLE},
    FieldDescriptor.CPPTYPE_FLOAT: {OptionKind.NUMBER},
    FieldDescriptor.CPPTYPE_ENUM: {OptionKind.CHOICE},
    FieldDescriptor.CPPTYPE_BOOL: {OptionKind.FLAG},
    FieldDescriptor.CPPTYPE_MESSAGE: {OptionKind.DURATION, OptionKind.WORDS},
}
GIVEN: dict[OptionKind, tuple[str, Any, str]] = {
    OptionKind.TEXT: ("de", "de", ""),
    OptionKind.KEY: ("mo", "mo", ""),
    OptionKind.WHOLE: ("3", 3, "3.5"),
    OptionKind.NUMBER: ("2.5", 2.5, "nan"),
    OptionKind.DURATION: ("2.5", 2.5, "4000"),
    OptionKind.CHOICE: ("low-latency", "low_latency", "middle"),
    OptionKind.FLAG: ("true", True, "perhaps"),
}
"""Text of a valid value, the value, and text of an invalid value or ""."""


def option(kind: OptionKind) -> Option:
    between = (0.0, 3_600.0) if kind in (OptionKind.WHOLE, OptionKind.NUMBER, OptionKind.DURATION) else None
    choices = ("upstream", "low_latency") if kind is OptionKind.CHOICE else ()
    return Option("mine", kind, between=between, choices=choices, http="mine", say="mine")


def test_the_rows_are_the_fields_of_a_request() -> None:
    fields = {field.name: field for field in pb.SynthesizeRequest.DESCRIPTOR.fields if field.name not in OWN}
    fields |= {f"audio_config.{field.name}": field for field in pb.AudioConfig.DESCRIPTOR.fields}
    assert {one.field for one in OPTIONS} == set(fields)
    assert {"--gain", "--min-nfe", "--rate"} < {one.argument for one in OPTIONS if one.say}
    for one in OPTIONS:
        field = fields[one.field]
        assert one.kind in FIELD_TYPES[field.cpp_type]
        assert one.name in Options.__annotations__ and one.own in Options.__annotations__
        if field.enum_type is not None:
            known = [value.name.lower() for value in field.enum_type.values if value.number]
            assert sorted(one.choices) == sorted(known)


@pytest.mark.parametrize("one", OPTIONS, ids=lambda one: one.field)
def test_the_daemon_refuses_values_outside_a_rows_range(one: Option) -> None:
    wrong: Any = None
    if one.kind is OptionKind.KEY:
        wrong = "x" * (MAX_KEY_CHARACTERS + 1)
    elif one.kind is OptionKind.CHOICE and one.own != "encoding":  # the encoder refuses it instead
        wrong = 99
    elif one.kind is OptionKind.DURATION:
        wrong = timedelta(hours=2)
    elif one.between is not None and one.own != "seed":  # the field's type has the same range
        wrong = one.between[1] + 1
    message = pb.SynthesizeRequest()
    if wrong is None:
        check_options(message)
        return
    part = {one.own: int(wrong) if one.kind is OptionKind.WHOLE else wrong}
    message = pb.SynthesizeRequest(**({"audio_config": part} if one.field != one.own else part))
    with pytest.raises(InvalidRequest) as refused:
        check_options(message)
    assert refused.value.field == one.field


@pytest.mark.parametrize("kind", GIVEN)
def test_a_parameter_of_each_kind_is_read_by_its_row(kind: OptionKind) -> None:
    text, value, wrong = GIVEN[kind]
    given = text.replace("-", "_")
    assert Fields({"mine": given}).option(option(kind), "mine") == value
    assert not Fields({}).option(option(kind), "mine")
    if wrong:
        with pytest.raises(Refusal, match=r"^mine: "):
            Fields({"mine": wrong}).option(option(kind), "mine")
    if kind is OptionKind.FLAG:
        assert Fields({"mine": "false"}).option(option(kind), "mine") is False


@pytest.mark.parametrize("kind", GIVEN)
def test_a_flag_of_each_kind_is_read_by_its_row(kind: OptionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value, _ = GIVEN[kind]
    monkeypatch.setattr(saying, "OPTIONS", (option(kind),))
    parser = argparse.ArgumentParser()
    saying.add_say(parser)
    written = ["--mine"] if kind is OptionKind.FLAG else ["--mine", text]
    assert parser.parse_args(["hi", "--voice", "ann", *written]).mine == (
        text if kind is OptionKind.CHOICE else value
    )
    assert not parser.parse_args(["hi", "--voice", "ann"]).mine
