"""Costs of a run of the tests, and their bounds.

Each process of pytest writes the costs of its tests into the folder that F5_COSTS names. `python -m
tests.harness.budget FOLDER` adds the costs up, and exits with 1 if a cost exceeds its bound.
"""

import json
import os
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

Costs = Mapping[str, Mapping[str, float]]
"""`counts`: number of starts. `tests`, `processes`: processor seconds, children that have ended included.

A program that ends after its test, such as a daemon that a module's tests share, is a cost of the process.
"""

MOST = {"daemons": 40, "traces": 4}
DEAREST_S, BUILDS_S = 8.0, 12.0
"""Processor seconds of a test, and of the fixtures that it builds, on a quiet core."""
LOADED = 2
"""Factor by which a test may exceed its bound: both threads of a core compute, or the processor is older."""
BUILDS = "what {} builds on"
NAMED = 10
"""Number of tests that the report lists."""

counts: Counter[str] = Counter()
tests: defaultdict[str, float] = defaultdict(float)


def used_s(*whose: int) -> float:
    usages = [resource.getrusage(who) for who in whose or (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and not isinstance(arguments[1], (str, bytes, os.PathLike)):
        counts["daemons"] += "serve" in arguments[1]


def _count_traces() -> None:
    """Count calls of torch's exporter, once a test has imported it."""
    exporter = sys.modules.get("torch.onnx")
    if exporter is None or hasattr(exporter, "uncounted"):
        return
    exporter.uncounted = exporter.export  # type: ignore[attr-defined]

    def export(*arguments: Any, **options: Any) -> Any:
        counts["traces"] += 1
        return exporter.uncounted(*arguments, **options)

    exporter.export = export  # type: ignore[attr-defined]


def pytest_configure() -> None:
    sys.addaudithook(_notice)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    yield from _noted(BUILDS.format(item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    yield from _noted(item.nodeid)


def _noted(name: str) -> Generator[None, Any, None]:
    _count_traces()
    before = used_s()
    try:
        yield
    finally:
        tests[name] += used_s() - before


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let upstream plan a text if upstream's tests run here: its imports take longer than a test may."""
    if "F5_COSTS" in os.environ and any(item.get_closest_marker("torch") for item in session.items):
        from tests.oracle.golden import generate

        generate._plan("Hi.", generate.REFERENCES[0], ["H", "i", "."])


def pytest_sessionfinish() -> None:
    if folder := os.environ.get("F5_COSTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        costs = {"counts": counts, "tests": tests, "processes": {os.getpid(): used_s()}}
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(costs))


def summed(processes: Sequence[Costs]) -> Costs:
    """Return the costs of all processes together."""
    together: dict[str, defaultdict[str, float]] = {kind: defaultdict(float) for kind in processes[0]}
    for costs in processes:
        for kind, amounts in costs.items():
            for name, amount in amounts.items():
                together[kind][name] += amount
    return together


def excesses(costs: Costs) -> list[str]:
    """Return the costs that exceed their bounds, as sentences."""
    over = [f"{n:.0f} {name}, at most {MOST[name]}" for name, n in costs["counts"].items() if n > MOST[name]]
    for name, s in costs["tests"].items():
        bound_s = LOADED * (BUILDS_S if name.startswith(BUILDS.partition("{")[0]) else DEAREST_S)
        if s > bound_s:
            over.append(f"{name} takes {s:.1f} CPU s, at most {bound_s:.1f}")
    return over


def main(folder: Path) -> int:
    costs = summed([json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])
    for name, s in sorted(costs["tests"].items(), key=lambda test: -test[1])[:NAMED]:
        print(f"{s:6.1f} CPU s  {name}")
    whole_s = sum(costs["processes"].values())
    print(f"{whole_s:6.1f} CPU s  all; {dict(costs['counts'])}")
    over = excesses(costs)
    for line in over:
        print(f"over budget: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
