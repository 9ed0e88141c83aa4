"""The table from errors to statuses: complete, and small enough to travel."""

from __future__ import annotations

import inspect

import grpc
import pytest

from appliance import errors
from appliance.errors import ApplianceError, InvalidReference, InvalidRequest
from appliance.rpc.status import TABLE, reason_of, rule_for, to_status

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ApplianceError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status_of_its_own_or_its_parents(kind: type[ApplianceError]) -> None:
    assert kind in TABLE or kind is InvalidReference
    assert isinstance(TABLE.get(kind, TABLE[InvalidRequest]).code, grpc.StatusCode)


def test_the_nearest_class_counts() -> None:
    assert rule_for(InvalidReference("audio", "is silent")).code is grpc.StatusCode.INVALID_ARGUMENT

    class Sudden(errors.QueueFull):
        pass

    assert rule_for(Sudden()).code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_reasons_are_upper_snake_case() -> None:
    assert reason_of(errors.VoiceNotFound) == "VOICE_NOT_FOUND"
    assert reason_of(errors.Cancelled) == "CANCELLED"


def test_the_longest_message_fits_into_a_clients_8_kib() -> None:
    status = to_status(InvalidRequest("text", "長" * 100_000))
    percent_encoded = 3 * len(status.message.encode())
    base64 = 4 * len(status.SerializeToString()) / 3
    assert percent_encoded + base64 < 8_000
    assert status.message.startswith("text: 長")
    assert status.message.endswith("…")
