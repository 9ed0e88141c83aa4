"""The number of function evaluations has one default: `synthesis.nfe`. Nothing else knows a number."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from appliance import cli
from appliance.config import Config, SynthesisConfig
from appliance.rpc import appliance_pb2 as pb
from tests.daemons import BUNDLE, Running, running

pytestmark = [pytest.mark.slow, pytest.mark.once]

PRODUCT = ("appliance", "export", "scripts", "configs")
THE_ONE = "appliance/config.py: SynthesisConfig.nfe"
MEASUREMENT_POINTS = {
    "export/oracles.py: SAMPLE_NFES",
    "export/oracles.py: GATE_NFES",
    "appliance/engine/agreement.py: NFE",
    "appliance/engine/agreement.py: FINE_NFE",
    "appliance/bench/run.py: argument nfe",
    "scripts/train-demo-on-gpu: nfe 16",
}
"""Where a bundle, a vocabulary or a training is measured; a result of theirs is never spoken."""
DATA = ("appliance/demo/bundle", "appliance/demo/voices")
"""Weights and sound; a manifest says at which numbers its bundle was measured."""

NAME = re.compile(r"(^|_)(nfe|nfes|nfe_steps?|num_steps|n_steps|steps|function_evaluations)$", re.IGNORECASE)
LIMITS = {"max_nfe", "min_nfe", "fewer_steps"}
"""What is no number of evaluations, though it bounds or changes one."""


def is_nfe(name: str | None) -> bool:
    return name is not None and name.lower() not in LIMITS and bool(NAME.search(name))


def has_number(node: ast.AST | None) -> bool:
    """Whether a value is a number above zero, a collection of such, or a field with one as its default.

    A zero stands for "none yet"; a number inside an expression or another call is no default.
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and node.value > 0
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(map(has_number, node.elts))
    if isinstance(node, ast.Call):
        return any(keyword.arg == "default" and has_number(keyword.value) for keyword in node.keywords)
    return False


def python_defaults(text: str) -> Iterator[str]:
    """Names that stand for a number of evaluations and are given a number, wherever they are given it."""
    yield from _visit(ast.parse(text), "")


def _visit(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _parameters(child.args)
        if isinstance(child, ast.AnnAssign) and is_nfe(_name(child.target)) and has_number(child.value):
            yield f"{inside}{_name(child.target)}"
        if isinstance(child, ast.Assign):
            yield from (f"{inside}{name}" for name in _assigned(child))
        if isinstance(child, ast.Call):
            yield from _call(child)
        if isinstance(child, ast.Dict):
            for key, value in zip(child.keys, child.values, strict=True):
                if isinstance(key, ast.Constant) and is_nfe(str(key.value)) and has_number(value):
                    yield str(key.value)
        if isinstance(child, (ast.BoolOp, ast.IfExp)):
            yield from _fallback(child)
        yield from _visit(child, f"{child.name}." if isinstance(child, ast.ClassDef) else inside)


def _assigned(node: ast.Assign) -> Iterator[str]:
    """nfe = 7; nfe, guidance = 7, 2.0; nfe = field(default=7)."""
    for target in node.targets:
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        yield from (str(_name(name)) for name, value in pairs if is_nfe(_name(name)) and has_number(value))


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    given = zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    for parameter, default in (*given, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if is_nfe(parameter.arg) and has_number(default):
            yield f"parameter {parameter.arg}"


def _call(call: ast.Call) -> Iterator[str]:
    """add_argument("--nfe", default=7), and f(nfe=7)."""
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    option = any(is_nfe(text.lstrip("-").replace("-", "_")) for text in texts)
    for keyword in call.keywords:
        if (is_nfe(keyword.arg) or (option and keyword.arg == "default")) and has_number(keyword.value):
            yield f"argument {keyword.arg}"
    if option and _name(call.func) in ("get", "getattr", "setdefault", "getenv", "pop"):
        yield from (f"argument of {_name(call.func)}" for value in call.args[1:] if has_number(value))


def _fallback(node: ast.BoolOp | ast.IfExp) -> Iterator[str]:
    """nfe or 7; 7 if nfe is None else nfe."""
    parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
    numbers = [p for p in parts if isinstance(p, ast.Constant) and has_number(p)]
    names = [p for p in ast.walk(node) if isinstance(p, ast.expr) and is_nfe(_name(p))]
    if numbers and names:
        yield f"fallback of {_name(names[0])}"


def yaml_defaults(value: object, path: str = "") -> Iterator[str]:
    """Dotted keys that name evaluations and hold a number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            dotted = f"{path}.{key}" if path else str(key)
            if is_nfe(str(key)) and isinstance(inner, (int, float)):
                yield dotted
            yield from yaml_defaults(inner, dotted)
    elif isinstance(value, list):
        for inner in value:
            yield from yaml_defaults(inner, path)


SHELL = re.compile(
    r"(?:--(?:set\s+)?\w*\.?|\b[\w.]*)nfe(?:[-_]steps)?(?:=|\s+|:-)[\"']?[1-9]\d*", re.IGNORECASE
)

COMMENT = re.compile(r"(?<!\S)#.*")


def defaults_in(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".py" or "python" in text.split("\n", 1)[0]:
        yield from python_defaults(text)
    elif path.suffix in (".yaml", ".yml"):
        yield from (key for document in yaml.safe_load_all(text) for key in yaml_defaults(document))
    elif path.suffix == ".proto":
        yield from (m[0] for m in re.finditer(r"nfe\w*\s*=\s*\d+\s*\[.*default.*\]", text))
    elif path.suffix not in (".md", ".in", ".txt"):  # prose and locks hold no default
        yield from (m[0] for m in SHELL.finditer(COMMENT.sub("", text)))


def sources(root: Path) -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if (
                path.is_file()
                and "__pycache__" not in path.parts
                and path.parent.relative_to(root).as_posix() not in DATA
                and not path.stem.endswith(("_pb2", "_pb2_grpc"))
            ):
                yield path


def test_nothing_but_the_configuration_has_a_number(root: Path) -> None:
    found = {
        f"{path.relative_to(root)}: {name}"
        for path in sources(root)
        for name in defaults_in(path)
        if not (path.parent.name == "configs" and name == "synthesis.nfe")
    }
    assert found - MEASUREMENT_POINTS == {THE_ONE}


def test_every_configuration_agrees_with_the_default(root: Path) -> None:
    for path in (root / "configs").glob("*.yaml"):
        raw = yaml.safe_load(path.read_text("utf-8")) or {}
        assert (raw.get("synthesis") or {}).get("nfe", SynthesisConfig.nfe) == SynthesisConfig.nfe, path.name


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, *, nfe_steps: int = 8): ...",
        "f = lambda steps=5: steps",
        "class A:\n    nfe: int = 16",
        "DEFAULT_NFE = 32",
        "self.nfe = 7",
        "parser.add_argument('--nfe-steps', default=7)",
        "run(x, nfe=7)",
        "{'nfe': 7}",
        "raw.get('nfe', 7)",
        "nfe = request.nfe or 7",
        "time_grid(7 if nfe is None else nfe)",
        "class A:\n    def f(self, n_steps=9): ...",
        "NFE = field(default=7)",
        "NFE, GUIDANCE = 7, 2.0",
        "NFES = (5, 7)",
    ],
)
def test_the_search_finds_a_default_wherever_it_hides(text: str) -> None:
    assert list(python_defaults(text))


@pytest.mark.parametrize(
    "text",
    [
        "parser.add_argument('--nfe', type=int)",
        "nfe = len(times) - 1 if times else 0",
        "class A:\n    nfe: int = 0",
        "run(nfe=config.nfe)",
        "Request(nfe=within('nfe', nfe, 1, MAX_NFE))",
        "MAX_NFE = 64",
        "steps_s = 1.5",
    ],
)
def test_the_search_finds_nothing_where_there_is_no_default(text: str) -> None:
    assert list(python_defaults(text)) == []


def test_the_search_reads_yaml_and_shell() -> None:
    assert list(yaml_defaults({"a": [{"nfe": 7}], "synthesis": {"nfe": 7}})) == ["a.nfe", "synthesis.nfe"]
    for line in ("say --nfe 7", "say --nfe=7", "NFE=16", "${NFE:-7}", "--set synthesis.nfe=5"):
        assert SHELL.search(line), line
    for line in ('say --nfe "$1"', "nfe=$NFE", "x-nfe: header"):
        assert not SHELL.search(line), line


# What a caller gets that does not say


OTHER = 3
"""A number that nothing has a reason to know."""
TEXT = "Thanks for the follow."


@pytest.fixture(scope="module", params=[None, OTHER], ids=["the default", "configured"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    sections: dict[str, dict[str, Any]] = {} if request.param is None else {"synthesis": {"nfe": OTHER}}
    with running(tmp_path_factory.mktemp("nfe"), **sections) as box:
        box.add_voice()
        yield box


def configured(box: Running) -> int:
    return int(box.config.get("synthesis", {}).get("nfe", Config().synthesis.nfe))


def test_the_daemon_takes_the_configured_number(box: Running) -> None:
    request = pb.SynthesizeRequest(text=TEXT, voice="ann", seed=3)
    with box.channel() as channel:
        silent = box.synthesizer(channel).Synthesize(request)
        request.nfe_steps = configured(box)
        explicit = box.synthesizer(channel).Synthesize(request)
        request.nfe_steps = configured(box) + 1
        other = box.synthesizer(channel).Synthesize(request)
    assert silent.header.nfe_steps == silent.timings.nfe_steps == configured(box)
    assert silent.audio == explicit.audio != other.audio


def test_say_leaves_the_number_to_the_daemon(
    box: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for name, more in (("silent", []), ("explicit", ["--nfe", str(configured(box))])):
        out = tmp_path / f"{name}.wav"
        options = ["--voice", "ann", "--seed", "3", "--out", str(out), "--table", "--address", box.address]
        assert cli.main(["say", TEXT, *options, *more]) == 0
        written.append(out.read_bytes())
        assert re.search(rf"NFE · seed\s+{configured(box)} · 3", capsys.readouterr().out)
    assert written[0] == written[1]


def test_replay_takes_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "case.npz",
        cond=rng.standard_normal((1, 9, 100)).astype(np.float32),
        ids=np.arange(5)[None],
        n_frames=np.int64(30),
        noise=rng.standard_normal((30, 100)).astype(np.float32),
    )

    def mel(*more: str) -> np.ndarray[Any, Any]:
        arguments = ["replay", str(BUNDLE), str(tmp_path / "case.npz"), "--out", str(tmp_path / "out.npz")]
        assert cli.main([*arguments, *more]) == 0
        with np.load(tmp_path / "out.npz") as out:
            return out["mel"]  # type: ignore[no-any-return]

    default = dataclasses.fields(SynthesisConfig)[0].default
    assert np.array_equal(mel(), mel("--nfe", str(default)))
    assert not np.array_equal(mel(), mel("--nfe", str(OTHER)))
