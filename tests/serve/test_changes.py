"""A bundle swap, with a reload or the end of its call during its load."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.audio.phrases import Phrases
from appliance.config import Config, TextConfig, VoicesConfig
from appliance.contract import bundle
from appliance.rpc import admin_pb2 as pb
from appliance.rpc.admin import AdminService
from appliance.serve import changes
from appliance.voices.index import open_index
from appliance.voices.prompts import Prompts
from tests.harness.daemons import BUNDLE
from tests.harness.engine import FakeEngine


class Engines:
    """Engines that test and replace at once."""

    generation = 0

    def test(self, engine: object) -> Future[float]:
        tested: Future[float] = Future()
        tested.set_result(0.0)
        return tested

    def replace(self, engine: object, switch: Callable[[], None]) -> None:
        self.generation += 1
        switch()


def test_a_reload_while_a_swap_loads_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(voices=VoicesConfig(folder=tmp_path / "voices", cache=tmp_path / "cache"))
    read = bundle.read(BUNDLE, verify=False)
    store = open_index(config.voices, read)
    scheduler: Any = SimpleNamespace(engines=Engines(), check_open=lambda: None)
    present = changes.Changes(config, read, store, Prompts(store), scheduler, Phrases(0))
    assert present.speech.front.languages[:1] != ("fr",)

    def load(*_: object) -> FakeEngine:
        present.reload(replace(config, text=TextConfig(language="fr")))
        return FakeEngine()

    monkeypatch.setattr(changes, "load_beside", load)
    asyncio.run(present.swap(BUNDLE, print))
    assert present.speech.generation == 1
    assert present.speech.front.languages[:1] == ("fr",)


def test_a_swap_whose_caller_goes_away_is_finished_before_the_next() -> None:
    done: list[str] = []

    async def swaps() -> None:
        going = asyncio.Event()

        async def swap(folder: Path) -> None:
            done.append(f"{folder} begins")
            await going.wait()
            done.append(f"{folder} ends")

        daemon: Any = SimpleNamespace(swap=swap, describe=pb.Status)
        service, context = AdminService(daemon), cast("Any", None)
        asked = (pb.SwapBundleRequest(path=path) for path in ("/first", "/queued", "/last"))
        calls = [asyncio.create_task(service.SwapBundle(one, context)) for one in asked]
        await asyncio.sleep(0)
        for call in calls[:2]:
            call.cancel()
        await asyncio.wait(calls[:2])
        going.set()
        await calls[2]

    asyncio.run(swaps())
    assert done == ["/first begins", "/first ends", "/last begins", "/last ends"]
