"""CTC letter recogniser (Graves et al., 2006): aligns clips with their texts, transcribes generated mels.

It is trained on the corpus in minutes, so training needs neither engine timings nor an external recogniser.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from export.demo import alphabet
from export.demo.autocast import autocast
from export.demo.dataset import SPEC, Store, parallel_map

BLANK = len(alphabet.TRAINED)
STRIDE = 2
WIDTH = 192
DILATIONS = (1, 2, 4, 1, 2)
LABELS = "letters.bin"
"""File beside the mels: int16 per frame, its token index in the clip's text."""
ALIGNED_AT_ONCE = 4096
"""Clips per batch of alignments."""
IMPOSSIBLE = -1e9


class LetterRecogniser(nn.Module):
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
    def log_probabilities(self, mel: Tensor) -> NDArray[np.float32]:
        """Log-probabilities (⌈N / STRIDE⌉, letters + 1) of one log-mel (N, M)."""
        found: NDArray[np.float32] = self(mel[None].to(self.leave.weight.device))[0].cpu().numpy()
        return found

    @torch.inference_mode()
    def read(self, mel: Tensor) -> str:
        """Greedy CTC transcript of a log-mel (N, M)."""
        best = self(mel[None])[0].argmax(dim=-1).unique_consecutive().tolist()
        return "".join(alphabet.TRAINED[index] for index in best if index != BLANK)


def train(
    store: Store, path: Path, *, clips: int, batch: int = 8, seed: int = 0, device: str = "cpu"
) -> LetterRecogniser:
    """Train on `clips` random clips and write the weights to `path`."""
    torch.manual_seed(seed)
    model = LetterRecogniser().to(device)
    steps = max(clips // batch, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    pool = np.array(store.select("train"))
    rng = np.random.default_rng(seed)
    bar = tqdm(range(steps), desc="letter recogniser", unit="batch", disable=None)
    for _ in bar:
        chosen = [store.clips[number] for number in rng.choice(pool, batch)]
        mels = [torch.from_numpy(store.mel(clip)) for clip in chosen]
        said = [torch.from_numpy(alphabet.ids(clip.text)) for clip in chosen]
        with autocast(device):
            padded = nn.utils.rnn.pad_sequence(mels, batch_first=True)
            # Noise: generated mels are blurrier than those of clips.
            found = model((padded + 0.3 * torch.randn_like(padded)).to(device))
        loss = F.ctc_loss(
            found.transpose(0, 1),
            torch.cat(said).to(device),
            torch.tensor([-(-len(mel) // STRIDE) for mel in mels]),
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


def save(model: LetterRecogniser, store: Store, path: Path) -> None:
    """Write weights and the voices of the training store."""
    torch.save({"voices": voices(store), "weights": model.state_dict()}, path)


def load(path: Path) -> LetterRecogniser:
    model = LetterRecogniser()
    model.load_state_dict(torch.load(path, weights_only=True)["weights"])
    return model.eval()


def covers_voices(path: Path, store: Store) -> bool:
    """True if the recogniser at `path` was trained on every voice of the store.

    It fails on other voices. Files of earlier versions list no voices and count as trained on none.
    """
    return set(voices(store)) <= set(torch.load(path, weights_only=True).get("voices", ()))


def voices(store: Store) -> list[str]:
    return sorted({clip.voice for clip in store.clips})


def write_labels(model: LetterRecogniser, store: Store, workers: int) -> None:
    """Append alignments of clips that have none."""
    path = store.folder / LABELS
    have = path.stat().st_size // 2 if path.exists() else 0
    waiting = [clip for clip in store.clips if clip.start + clip.frames > have]
    if not waiting:
        return
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(2 * waiting[0].start)
        # The forward pass takes a tenth of the time and stays here; Viterbi runs in worker processes.
        for begin in tqdm(range(0, len(waiting), ALIGNED_AT_ONCE), "labels", disable=None):
            some = waiting[begin : begin + ALIGNED_AT_ONCE]
            probabilities = [
                (model.log_probabilities(torch.from_numpy(store.mel(clip))), clip.text, clip.frames)
                for clip in some
            ]
            for one in parallel_map(_align, probabilities, workers):
                file.write(one.tobytes())


def _align(given: tuple[NDArray[np.float32], str, int]) -> NDArray[np.int16]:
    found, text, frames = given
    return align(found, alphabet.ids(text), frames)


def labels(store: Store) -> NDArray[np.int16]:
    """Memory-mapped token index of each frame of the store. Raises ValueError if clips are unaligned."""
    found: NDArray[np.int16] = np.memmap(store.folder / LABELS, np.int16, "r")
    if len(found) < len(store.mels):
        raise ValueError(f"{store.folder}: not all clips are aligned; `python -m export.demo train` does it")
    return found


def align(found: NDArray[np.float32], said: NDArray[np.int64], frames: int) -> NDArray[np.int16]:
    """Viterbi alignment: token index of each frame (frames,).

    `found` (H, letters + 1) are log-probabilities, `said` token ids. Borders lie midway between the peaks of
    neighbouring tokens.
    """
    states = np.full(2 * len(said) + 1, BLANK)
    states[1::2] = said
    # Transitions: stay, next state, or skip the blank between two different letters.
    skips = np.zeros(len(states), bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    score = np.full(len(states), IMPOSSIBLE)
    score[:2] = found[0, states[:2]]
    back = np.zeros((len(found), len(states)), np.int8)
    for frame in range(1, len(found)):
        ways = np.full((3, len(states)), IMPOSSIBLE)
        ways[0] = score
        ways[1, 1:] = score[:-1]
        ways[2, 2:] = np.where(skips[2:], score[:-2], IMPOSSIBLE)
        back[frame] = ways.argmax(axis=0)
        score = ways.max(axis=0) + found[frame, states]
    state = len(states) - 1 if score[-1] >= score[-2] else len(states) - 2
    path = np.empty(len(found), np.int64)
    for frame in range(len(found) - 1, -1, -1):
        path[frame] = state
        state -= int(back[frame, state])
    return _token_frames(path, len(said), frames)


def _token_frames(path: NDArray[np.int64], tokens: int, frames: int) -> NDArray[np.int16]:
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


def letter_errors(transcript: str, text: str) -> float:
    """Letter error rate of `transcript` against `text`, ignoring case, spaces and punctuation."""
    a, b = (
        np.array([i for i in alphabet.ids(one) if 1 <= i <= len(alphabet.SMALL)])
        for one in (transcript, text)
    )
    row = np.arange(len(b) + 1)
    for number, letter in enumerate(a, start=1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (b != letter))
        # Insertions run along the row: a running minimum, each step costing one.
        steps = np.concatenate(([number], changed)) - np.arange(len(b) + 1)
        row = np.minimum.accumulate(steps) + np.arange(len(b) + 1)
    return float(row[-1]) / max(len(b), 1)
