"""Regenerate `tests/tiny/bundle` and `watermark`: random weights in the official layouts, exported.

The command runs in the root, with torch: `python -m tests.tiny.generate`. With OUT it writes the bundle there
and no watermark.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch

from export.cli import main as export
from export.families import family
from export.model.vocos import VocosConfig
from export.watermark import Detect, Embed
from export.watermark import export as export_watermark
from tests.export.random_checkpoint import write_random, write_random_vocos

HERE = Path(__file__).parent
VOCOS = VocosConfig(mels=100, dim=32, intermediate_dim=64, layers=2, n_fft=1024, hop=256, padding="center")
SYLLABLES = ("ni3", "hao3", "da4", "jia1", "huan1", "ying2", "xie4", "zhu3", "bo1", "shi4", "jie4")
MAX_FRAMES = 2048
SEED = 7
BANDS, HIDDEN = 128, 8


def vocabulary() -> list[str]:
    """Printable ASCII, a few pinyin syllables and Chinese punctuation; the space stands first."""
    return [chr(code) for code in range(32, 127)] + list(SYLLABLES) + list("，。！？、；：")


def generate(out: Path) -> int:
    """Write the bundle `out`; returns the exporter's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder)
        tiny = family(str(HERE / "family.yaml"))
        checkpoint, vocab = write_random(weights, tiny.arch, vocabulary(), SEED)
        vocoder = write_random_vocos(weights / "vocos", VOCOS, SEED)
        sources = {
            "--family": HERE / "family.yaml",
            "--checkpoint": checkpoint,
            "--vocab": vocab,
            "--vocoder-path": vocoder,
            "--max-frames": MAX_FRAMES,
            "--licence": "Apache-2.0",
            "--language": "en,zh",
            "--accept": "random weights",
            "--out": out,
        }
        return export(["bundle", *(str(word) for pair in sources.items() for word in pair)])


def watermark(out: Path) -> None:
    """Write the folder `out`: Perth's layers, 8 wide; gains are small, confidences near a half."""
    torch.manual_seed(SEED)
    embed, detect = Embed(BANDS, HIDDEN), Detect(BANDS, HIDDEN)
    with torch.no_grad():
        for tensor in embed.parameters():
            tensor *= 0.3
        for layers in detect.children():
            layers[-1].bias += 0.5
    export_watermark(embed, detect, out, "random weights")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "bundle"
    shutil.rmtree(target, ignore_errors=True)
    if len(sys.argv) == 1:
        shutil.rmtree(HERE / "watermark", ignore_errors=True)
        watermark(HERE / "watermark")
    sys.exit(generate(target))
