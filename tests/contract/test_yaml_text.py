"""YAML that a stranger wrote: each failure is a single line, whatever a constructor raises."""

import pytest

from appliance.contract.yaml_text import parse_yaml


@pytest.mark.parametrize(("text", "line"), [
    ("a: 1\nlevel: !!bool foo\n", 2),
    ("a: !!int foo", 1),
    ("\n\na: !!float x", 3),
    ("a: !!timestamp x", 1),
    ("a:\n- b\n- 2024-99-99", 3),
    (f"a: !!int {'1' * 5_000}", 1),
    ("? [a]\n: b", 1),
    ("a: !!set [1]", 1),
    ("a: !!python/name:os.system ''", 1),
    ('a: "\\ud800"', 1),
])  # fmt: skip
def test_constructor_errors_name_the_file(text: str, line: int) -> None:
    with pytest.raises(LookupError) as caught:
        parse_yaml(text, "voice.yaml", LookupError)
    assert type(caught.value) is LookupError
    assert str(caught.value).startswith("voice.yaml: unreadable: ")
    assert f"line {line}, column" in str(caught.value) and "\n" not in str(caught.value)


def test_deep_nesting_is_an_error_and_not_the_end_of_the_process() -> None:
    for level in ("[", "{a: ", "- ", "? "):
        with pytest.raises(LookupError, match=r"unreadable: .*recursion"):
            parse_yaml(level * 100_000, "f", LookupError)


def test_merges_of_merges_do_not_multiply() -> None:
    text = "a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(10)) + "}\n"
    for level in range(1, 9):
        text += f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    with pytest.raises(ValueError, match="more than 10000 keys"):
        parse_yaml(text, "f", ValueError)
    assert parse_yaml("a: &a {b: 1}\nc: {<<: *a, d: 2}", "f", ValueError)["c"] == {"b": 1, "d": 2}
