"""ESPnet3's F5: folders as its recipe for LibriTTS leaves them, against upstream's model, which it copies."""

import shutil
from pathlib import Path

import pytest
import torch

from appliance.contract.bundle import Arch
from export.families.declaration import Point
from export.sources import look
from tests.export.random_checkpoint import draw
from tests.harness import small
from tests.harness.rows import rows

pytestmark = pytest.mark.torch

TOKENS = ["<blank>", "<unk>", "E", "<space>", "T", "A", "'", ".", "O", "<sos/eos>"]
ARCH = Arch(64, 2, 2, 2, 32, 2, dim_head=32, text_mask_padding=False, pe_attn_head=1)


def recipe(folder: Path) -> Path:
    """`exp/small` of a recipe, with its `conf`, its tokens and a vocoder."""
    place = folder / "exp/small"
    for path in (place, folder / "conf", folder / "data/tokens"):
        path.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("espnet_small.yaml"), folder / "conf/small.yaml")
    (folder / "data/tokens/char_tokens.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    small.write_vocoder(place / "vocos", "vocos")
    shapes = {n: v.shape for n, v in small.upstream_dit(ARCH, len(TOKENS)).state_dict().items()}
    state = {f"cfm.transformer.{n}": draw(n, s, 3) for n, s in shapes.items() if "inv_freq" not in n}
    average = {f"ema_model.{n}": v for n, v in state.items()} | {"step": torch.tensor(9)}
    raw = {f"model.{n}": v * 0.9 for n, v in state.items()}
    settings = {"global_step": 9, "callbacks": {"EMACallback": {}}, "optimizer_states": [{"state": {}}]}
    torch.save({"state_dict": raw, "ema_model_state_dict": average, **settings}, place / "last.ckpt")
    return place


@torch.inference_mode()
@pytest.mark.parametrize(("kind", "key", "prefix"), [
    ("ema", "ema_model_state_dict", "ema_model.cfm.transformer."),
    ("raw", "state_dict", "model.cfm.transformer."),
])  # fmt: skip
def test_a_recipes_folder_speaks_as_its_model(kind: str, key: str, prefix: str, tmp_path: Path) -> None:
    """The bundle may have the tokens of the list in another order."""
    place = recipe(tmp_path)
    said = look.describe(place)
    assert "missing" not in said and "averaged and raw; averaged are used" in said and "step 9" in said
    loaded = small.opened_by(["bundle", str(place), "--weights", kind])
    assert loaded.sources.family.arch == ARCH
    assert (loaded.text.tokenizer, loaded.text.case) == ("char", "upper")
    state = torch.load(place / "last.ckpt", weights_only=True)[key]
    oracle = small.upstream_dit(ARCH, len(TOKENS))
    own = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    assert not oracle.load_state_dict(own, strict=False).unexpected_keys
    text, case = "TEA AT 'E.", small.case(70, reference=10)
    ids = torch.tensor([[TOKENS.index("<space>" if letter == " " else letter) for letter in text]])
    latents, cond = torch.from_numpy(case.noise), torch.zeros(70, small.MELS)
    expected = oracle(x=latents[None], cond=cond[None], text=ids, time=torch.tensor(0.3))[0]
    ours = torch.from_numpy(loaded.vocabulary.ids(text)).long()
    point = Point(latents, cond, ours, 0.3, 0.0, False, None)
    actual = loaded.declaration.velocity(loaded.reference(), point)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("old", "new", "message"), rows(__file__, "refused_recipes.jsonl"))
def test_missing_parts_of_a_recipe_are_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    place, path = recipe(tmp_path), tmp_path / "conf/small.yaml"
    path.write_text(path.read_text().replace(old, new))
    said = look.describe(place)
    assert "missing: --" in said and message in said


def test_a_list_of_pinyin_is_read_too(tmp_path: Path) -> None:
    place, path = recipe(tmp_path), tmp_path / "conf/small.yaml"
    path.write_text(path.read_text().replace("g2p_type: null", "g2p_type: f5_pinyin"))
    tokens = tmp_path / "data/tokens/char_tokens.txt"
    tokens.write_text(tokens.read_text().replace("<space>", " ").replace("A", "ni3"))
    loaded = small.opened_by(["bundle", str(place), "--out", str(tmp_path / "out")])
    assert loaded.text.tokenizer == "pinyin"
    assert loaded.vocabulary.tokens[:4] == (" ", "<blank>", "<unk>", "E")
