"""Tokens and vocabularies against upstream's, directly and by golden file."""

from importlib.resources import files

import numpy as np
import pytest

from appliance.contract.tokens import Vocabulary, parse_vocabulary, read_vocabulary
from appliance.contract.tokens import to_tokens as to_tokens_with
from appliance.errors import BundleError
from appliance.text.tokens.chinese import to_tokens
from tests.oracle import upstream
from tests.oracle.golden import generate


def test_a_hundred_lines_equal_golden(golden_lines):
    assert len(golden_lines["lines"]) >= 100
    for row in golden_lines["lines"]:
        assert to_tokens(row["line"]) == row["tokens"], row["line"]


@pytest.mark.torch
def test_golden_tokens_and_chunks_are_what_upstream_makes(golden_lines):
    texts = generate.lines()
    assert [row["line"] for row in golden_lines["lines"]] == texts
    assert upstream.convert_char_to_pinyin(texts) == [row["tokens"] for row in golden_lines["lines"]]
    for row in golden_lines["lines"]:
        for size, chunks in row["chunks"].items():
            assert upstream.chunk_text(row["line"], int(size)) == chunks


@pytest.mark.torch
def test_lines_joined_to_a_transcript_equal_upstream():
    transcript = "Some call me nature, others call me mother nature.  "
    texts = [transcript + line for line in generate.lines()] + [line + "对。" for line in generate.lines()]
    assert [to_tokens(text) for text in texts] == upstream.convert_char_to_pinyin(texts)


def test_the_rules_one_by_one():
    def split(text: str) -> list[str]:
        return text.split("|")

    def spell(word: str) -> list[str]:
        return [{"好": "hao3", "你": "ni3"}.get(c, c) for c in word]

    def tokens(text: str) -> list[str]:
        return to_tokens_with(text, split, spell)

    assert tokens("ab|cd") == ["a", "b", " ", "c", "d"]
    assert tokens("ab|c") == ["a", "b", "c"], "a lone sign is not set off"
    assert tokens("x:|cd") == ["x", ":", "c", "d"]
    assert tokens("“|ab") == ['"', "a", "b"]
    assert tokens("ab;|‘c’") == ["a", "b", ",", " ", "'", "c", "'"]
    assert tokens("你好") == [" ", "ni3", " ", "hao3"]
    assert tokens("你好|ok") == [" ", "ni3", " ", "hao3", " ", "o", "k"]
    assert tokens("，|ok") == ["，", " ", "o", "k"]
    assert tokens("好a") == [" ", "hao3", "a"]
    assert tokens("é") == ["é"]
    assert tokens("") == []
    # A piece that the converter returns whole is split into characters.
    assert to_tokens_with("、。", lambda text: [text], lambda word: [word]) == ["、", "。"]


def test_ids_are_lines_and_unknown_reads_as_space():
    vocabulary = parse_vocabulary(" \na\nni3\n")
    ids = vocabulary.ids([" ", "a", "ni3", "b"])
    assert ids.tolist() == [0, 1, 2, 0]
    assert ids.dtype == np.int32
    assert vocabulary.size == 3


def test_zipvoices_tokens_need_no_space_and_drop_unknown_characters():
    text = "こんにちは 世界_é"
    kept = {"simple": "こに世 ", "espeak": "に世 ", "letters": " こに世", "char": " こに世"}
    for tokenizer, tokens in kept.items():
        vocabulary = parse_vocabulary("\n".join(tokens) + "\n", tokenizer, "ja" * (tokenizer == "espeak"))
        split = vocabulary.split(text, list)
        leaves_out = tokenizer != "char"
        assert split == [c for c in text if c in tokens or not leaves_out]
        assert vocabulary.leaves_out == leaves_out
    for tokenizer in ("char", "letters", "pinyin", "emilia"):
        with pytest.raises(ValueError, match="the first line must be a single space, not 'こ'"):
            parse_vocabulary("こ\n", tokenizer)
    with pytest.raises(ValueError, match="not nothing"):
        parse_vocabulary("", "simple")


@pytest.mark.parametrize("text", [" \na\nb\n", " \r\na\r\nb\r\n", " \na\nb", " \r\na\r\nb", " \ra\rb\r"])
def test_line_ends_do_not_matter(text):
    vocabulary = parse_vocabulary(text)
    assert vocabulary.tokens == (" ", "a", "b")
    assert vocabulary.sha256 == Vocabulary((" ", "a", "b")).sha256


def test_a_duplicate_takes_the_later_line_and_leaves_no_room_for_the_last():
    vocabulary = parse_vocabulary(" \na\nb\na\nc\n")
    assert vocabulary.size == 4
    assert vocabulary.ids(["a", "b", "c"]).tolist() == [3, 2, 0]
    assert vocabulary.ids(vocabulary.tokens).max() < vocabulary.size


@pytest.mark.torch
@pytest.mark.parametrize("content", [
    b" \na\nni3\n\xe5\x93\xa6\n",
    b" \r\na\r\nb\r\n",
    b" \na\nb\na\n",
    b" \na\n\nb\n\n",
    b"\xef\xbb\xbf \na\nb\n",  # as upstream's fine-tuning page writes the file
    b"\xef\xbb\xbf \r\na\r\n \r\n",
])  # fmt: skip
def test_vocabulary_equals_upstreams(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    index, size = upstream.f5_utils().get_tokenizer(str(path), "custom")
    vocabulary = read_vocabulary(path)
    assert vocabulary.size == size
    assert {token: vocabulary.index.get(token, size) for token in index} == {
        token: min(line, size) for token, line in index.items()
    }


@pytest.mark.torch
def test_upstreams_own_vocabulary_reads_alike(golden_lines):
    upstream.require()
    path = files("f5_tts").joinpath("infer/examples/vocab.txt")
    index, size = upstream.f5_utils().get_tokenizer(str(path), "custom")
    vocabulary = parse_vocabulary(path.read_bytes().decode())
    assert (vocabulary.index, vocabulary.size) == (index, size)
    for row in golden_lines["lines"]:
        want = upstream.f5_utils().list_str_to_idx([row["tokens"]], index)[0].tolist()
        assert vocabulary.ids(row["tokens"]).tolist() == want


def test_after_a_byte_order_mark_spaces_are_unknown_and_unknown_is_the_first_line(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(" \na\nb\n", "utf-8-sig")
    vocabulary = read_vocabulary(path)
    assert vocabulary.ids("a b?").tolist() == [1, 0, 2, 0]
    path.write_bytes("".join(f"{token}\n" for token in vocabulary.tokens).encode())  # as in a bundle
    assert read_vocabulary(path) == vocabulary


def test_characters_are_tokens_as_they_are_where_the_vocabulary_says_so():
    line = "Xin chào “bạn”; mình chơi game 你好."
    assert "mì nh" in "".join(Vocabulary((" ",)).split(line, to_tokens))
    assert Vocabulary((" ",), "char").split(line, to_tokens) == list(line)


@pytest.mark.parametrize("content", [
    " \na\n你\n".encode("utf-16"), b'[" ", "a", "\\u4f60"]',
    b'{"a": 1, " ": 0, "\\u4f60": 2}', b'{\n" ": 0, "a": 1, "\\u4f60": 2}',
])  # fmt: skip
def test_a_vocabulary_may_be_utf_16_or_json(tmp_path, content):
    (tmp_path / "vocab").write_bytes(content)
    assert read_vocabulary(tmp_path / "vocab").tokens == (" ", "a", "你")


@pytest.mark.parametrize(("content", "message"), [
    (b"a\nb\n", "single space, not 'a'"), (b"", "nothing"), (b" \n\xff", "utf-8"), (None, "unreadable"),
])  # fmt: skip
def test_invalid_vocabularies_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=rf"vocab\.txt.*{message}"):
        read_vocabulary(path)
