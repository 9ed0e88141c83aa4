"""A small recogniser of letters: says which letter each frame of a clip belongs to, and reads made mels.

Trained on the corpus itself in minutes, so that training needs no timings from the engine and no judge from
outside. Connectionist temporal classification: Graves et al., 2006.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from export.demo import letters
from export.demo.precision import autocast
from export.demo.store import SPEC, Store, mapped

BLANK = len(letters.TRAINED)
STRIDE = 2
WIDTH = 192
DILATIONS = (1, 2, 4, 1, 2)
LABELS = "letters.bin"
"""Beside the mels: int16, one for each of their frames, the place in its clip's text."""
ALIGNED_AT_ONCE = 4096
"""Clips."""
IMPOSSIBLE = -1e9


class Listener(nn.Module):
    """Log-mels (B, N, M) → log-probabilities of letters and the blank (B, ⌈N / STRIDE⌉, letters + 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(SPEC.mels, WIDTH, kernel_size=5, stride=STRIDE, padding=2)
        self.convs = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, kernel_size=5, dilation=d, padding=2 * d) for d in DILATIONS
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in DILATIONS)
        self.leave = nn.Linear(WIDTH, BLANK + 1)

    def forward(self, mels: Tensor) -> Tensor:
        x = self.enter(mels.mT)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x.mT).mT))
        return self.leave(x.mT).float().log_softmax(dim=-1)

    @torch.inference_mode()
    def hear(self, mel: Tensor) -> NDArray[np.float32]:
        """Log-probabilities of one log-mel (N, M)."""
        heard: NDArray[np.float32] = self(mel[None].to(self.leave.weight.device))[0].cpu().numpy()
        return heard

    @torch.inference_mode()
    def read(self, mel: Tensor) -> str:
        """What is said in a log-mel (N, M): each frame's likeliest letter, without repeats and blanks."""
        best = self(mel[None])[0].argmax(dim=-1).unique_consecutive().tolist()
        return "".join(letters.TRAINED[index] for index in best if index != BLANK)


def train(
    store: Store, path: Path, *, clips: int, batch: int = 8, seed: int = 0, device: str = "cpu"
) -> Listener:
    """Train on so many clips and write the weights to `path`."""
    torch.manual_seed(seed)
    model = Listener().to(device)
    steps = max(clips // batch, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    pool = np.array(store.of("train"))
    rng = np.random.default_rng(seed)
    bar = tqdm(range(steps), desc="listener", unit="batch", disable=None)
    for _ in bar:
        chosen = [store.clips[number] for number in rng.choice(pool, batch)]
        mels = [torch.from_numpy(store.mel(clip)) for clip in chosen]
        said = [torch.from_numpy(letters.ids(clip.text)) for clip in chosen]
        with autocast(device):
            found = model(_roughened(nn.utils.rnn.pad_sequence(mels, batch_first=True)).to(device))
        loss = F.ctc_loss(
            found.transpose(0, 1),
            torch.cat(said).to(device),
            torch.tensor([_heard(len(mel)) for mel in mels]),
            torch.tensor([len(text) for text in said]),
            blank=BLANK,
            zero_infinity=True,
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    model = model.cpu().eval()
    save(model, store, path)
    return model


def save(model: Listener, store: Store, path: Path) -> None:
    """Write a listener's weights and the voices of the store that it was trained on."""
    torch.save({"voices": spoken(store), "weights": model.state_dict()}, path)


def load(path: Path) -> Listener:
    """A trained listener."""
    model = Listener()
    model.load_state_dict(torch.load(path, weights_only=True)["weights"])
    return model.eval()


def knows(path: Path, store: Store) -> bool:
    """Whether it was trained on every voice of the store: of another one it understands next to nothing.

    A file that does not name its voices is of an earlier version and counts as knowing none.
    """
    return set(spoken(store)) <= set(torch.load(path, weights_only=True).get("voices", ()))


def spoken(store: Store) -> list[str]:
    """The voices in a store."""
    return sorted({clip.voice for clip in store.clips})


def write_labels(model: Listener, store: Store, workers: int) -> None:
    """Align every clip that has no labels yet with its text, and append the labels to the store."""
    path = store.folder / LABELS
    have = path.stat().st_size // 2 if path.exists() else 0
    waiting = [clip for clip in store.clips if clip.start + clip.frames > have]
    if not waiting:
        return
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(2 * waiting[0].start)
        # Listening needs the model and takes a tenth of the time; finding the way through is spread out.
        for begin in tqdm(range(0, len(waiting), ALIGNED_AT_ONCE), "labels", disable=None):
            some = waiting[begin : begin + ALIGNED_AT_ONCE]
            heard = [(model.hear(torch.from_numpy(store.mel(clip))), clip.text, clip.frames) for clip in some]
            for one in mapped(_align, heard, workers):
                file.write(one.tobytes())


def _align(given: tuple[NDArray[np.float32], str, int]) -> NDArray[np.int16]:
    found, text, frames = given
    return align(found, letters.ids(text), frames)


def labels(store: Store) -> NDArray[np.int16]:
    """(frames of the store,) the place in its text that each frame belongs to, mapped."""
    found: NDArray[np.int16] = np.memmap(store.folder / LABELS, np.int16, "r")
    if len(found) < len(store.mels):
        raise ValueError(f"{store.folder}: not all clips are aligned; `python -m export.demo train` does it")
    return found


def align(found: NDArray[np.float32], said: NDArray[np.int64], frames: int) -> NDArray[np.int16]:
    """The likeliest way through a text: (frames,) the place of each frame's letter.

    `found` (H, letters + 1) are log-probabilities. A letter's peak is its middle: the frames between two
    peaks are shared between their letters.
    """
    states = np.full(2 * len(said) + 1, BLANK)
    states[1::2] = said
    # From a state, to itself, the next, or past a blank to another letter.
    skips = np.zeros(len(states), bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    score = np.full(len(states), IMPOSSIBLE)
    score[:2] = found[0, states[:2]]
    came = np.zeros((len(found), len(states)), np.int8)
    for heard in range(1, len(found)):
        ways = np.full((3, len(states)), IMPOSSIBLE)
        ways[0] = score
        ways[1, 1:] = score[:-1]
        ways[2, 2:] = np.where(skips[2:], score[:-2], IMPOSSIBLE)
        came[heard] = ways.argmax(axis=0)
        score = ways.max(axis=0) + found[heard, states]
    state = len(states) - 1 if score[-1] >= score[-2] else len(states) - 2
    path = np.empty(len(found), np.int64)
    for heard in range(len(found) - 1, -1, -1):
        path[heard] = state
        state -= int(came[heard, state])
    return _shared(path, len(said), frames)


def _shared(path: NDArray[np.int64], tokens: int, frames: int) -> NDArray[np.int16]:
    middles = np.zeros(tokens)
    for token in range(tokens):
        at = np.flatnonzero(path == 2 * token + 1)
        middles[token] = at.mean() * STRIDE + STRIDE / 2 if len(at) else np.nan
    known = np.flatnonzero(~np.isnan(middles))
    if len(known) == 0:
        return (np.arange(frames) * tokens // frames).astype(np.int16)
    middles = np.interp(np.arange(tokens), known, middles[known])
    borders = (middles[1:] + middles[:-1]) / 2
    return np.searchsorted(borders, np.arange(frames), side="right").astype(np.int16)


def letter_errors(heard: str, said: str) -> float:
    """Edits that turn one into the other, per letter said; signs, spaces and capitals do not count."""
    a, b = (
        np.array([i for i in letters.ids(text) if 1 <= i <= len(letters.SMALL)]) for text in (heard, said)
    )
    row = np.arange(len(b) + 1)
    for number, letter in enumerate(a, start=1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (b != letter))
        # Insertions run along the row: a running minimum, each step costing one.
        steps = np.concatenate(([number], changed)) - np.arange(len(b) + 1)
        row = np.minimum.accumulate(steps) + np.arange(len(b) + 1)
    return float(row[-1]) / max(len(b), 1)


def _heard(frames: int) -> int:
    return (frames + STRIDE - 1) // STRIDE


def _roughened(mels: Tensor) -> Tensor:
    """Noise on the mels, so that the listener also reads what is a little blurred."""
    return mels + 0.3 * torch.randn_like(mels)
