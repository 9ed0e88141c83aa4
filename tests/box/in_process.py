"""The fake tools without a process for each call: the same code, dozens of times as fast.

A program that a test has put in place of a fake is run as it is. That the fakes are also what a process
sees is for the tests of the script to show.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import io
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from appliance.box.system import Box
from appliance.box.tools import Completed, Tools
from tests.fakes.jetson import Jetson


@dataclass(frozen=True)
class InProcess(Tools):
    """Runs the fakes' `main` here."""

    jetson: Jetson | None = None

    def run(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        assert self.jetson is not None
        launcher = self.jetson.bin / name
        module = f"tests.fakes.tools.{name.replace('-', '_')}"
        if not launcher.exists() or f"{module} " not in launcher.read_text():
            return super().run(name, *arguments, timeout_s=timeout_s, answer=answer)
        main = importlib.import_module(module).main
        output, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict("os.environ", self.environment),
            mock.patch("sys.stdin", io.StringIO(answer)),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            try:
                code = main(list(arguments), self.jetson.machine)
            except Exception as error:  # as a process would end: with a traceback
                code = 1
                errors.write(f"{type(error).__name__}: {error}")
        return Completed((str(launcher), *arguments), code, output.getvalue(), errors.getvalue())


def quick(jetson: Jetson, **overrides: Any) -> Box:
    """`jetson.box(…)` with such tools."""
    box = jetson.box(**overrides)
    return replace(box, tools=InProcess(box.tools.folders, box.tools.environment, jetson))


def run_script(name: str, box: Box, *words: str) -> int:
    """Run the main function of `scripts/NAME` on a box; returns its exit status."""
    module = _script(name)
    with (
        mock.patch.object(module, "open_box", lambda sysroot, tools: box),
        mock.patch.object(sys, "argv", [name, *words]),
    ):
        code: int = module.main()
    return code


@functools.cache
def _script(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / name
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # No bytecode beside the scripts, and no change to the path of the other tests.
    with mock.patch.object(sys, "dont_write_bytecode", True), mock.patch.object(sys, "path", list(sys.path)):
        loader.exec_module(module)
    return module
