# SPDX-License-Identifier: MIT
"""A two-layer transformer trained with and without sternway.torch.enable().

    python tests/python/gpu_train.py [--device cuda|cpu] [--steps 50] [--only NAME]

Checks, each a row of the table:
- losses over all steps are as near to those of one of PyTorch's backends as PyTorch's backends are to each other, in
  bf16 autocast and in f32 (rounding grows over the steps of a training, so two right runs differ);
- under torch.use_deterministic_algorithms two runs give the same bits, losses and weights;
- a step with dropout gives the gradients of PyTorch's own backward, which draws the same mask from the same state;
- a training step captured in a CUDA graph and replayed, and a compiled model, train as the eager ones;
- the library ran: the count of attention backwards taken over is the number of layers times steps, no fallback.
The exit status is 1 when a row failed. Not collected by pytest: it is a program for a machine with a GPU; the CPU mode
tests the program itself."""
from __future__ import annotations

import argparse
import contextlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts; deterministic matrix products need it

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import sternway.torch  # noqa: E402
from gpu_table import Table  # noqa: E402

LAYERS, VOCABULARY = 2, 211
FLASH, EFFICIENT, MATH = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH


class Layer(torch.nn.Module):
    """Pre-norm attention and feed-forward, causal."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, rows, 3, self.heads, width // self.heads).unbind(2)
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                  is_causal=True, dropout_p=self.dropout)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, rows, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    """Tokens in, the loss of the next token out."""

    def __init__(self, rows: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(rows, width)
        self.layers = torch.nn.ModuleList(Layer(width, heads, dropout) for _ in range(LAYERS))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Setting:
    """Sizes and data of the training: an affine recurrence over tokens with noise, which is learnable and not trivial.
    Row counts are odd, so that no tile is full."""

    def __init__(self, device: str, steps: int) -> None:
        self.device, self.steps = torch.device(device), steps
        self.batch, self.rows, self.width, self.heads = (8, 251, 256, 4) if device == "cuda" else (2, 37, 48, 3)
        self.backends = (FLASH, EFFICIENT, MATH) if device == "cuda" else (FLASH, MATH)
        generator = torch.Generator().manual_seed(20)
        tokens = torch.zeros(steps, self.batch, self.rows + 1, dtype=torch.int64)
        tokens[..., 0] = torch.randint(VOCABULARY, (steps, self.batch), generator=generator)
        for i in range(self.rows):
            noise = torch.randint(3, (steps, self.batch), generator=generator)
            tokens[..., i + 1] = (tokens[..., i] * 5 + 17 + noise) % VOCABULARY
        self.data = tokens.to(self.device)

    def model(self, dropout: float = 0.0) -> Model:
        torch.manual_seed(4)
        return Model(self.rows, self.width, self.heads, dropout).to(self.device)

    def batch_of(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[step, :, :-1], self.data[step, :, 1:]

    def autocast(self, half: bool):
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False)


def train(setting: Setting, backend: SDPBackend, *, half: bool, ours: bool, compiled: bool = False,
          steps: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of all steps, and all weights after the last one as a vector."""
    model = setting.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    step_of = torch.compile(model, fullgraph=True) if compiled else model
    losses = []
    with sdpa_kernel(backend), sternway.torch.enable() if ours else contextlib.nullcontext():
        for step in range(steps or setting.steps):
            with setting.autocast(half):
                loss = step_of(*setting.batch_of(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses).double().cpu(), torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def attention_counts() -> tuple[int, int]:
    """(taken, fallen back) of the attention operators since the last reset_stats()."""
    rows = [row for name, row in sternway.torch.stats().items() if "attention" in name]
    return sum(row["taken"] for row in rows), sum(row["fallback"] for row in rows)


def check_counts(table: Table, name: str, wanted: int) -> None:
    taken, fallen = attention_counts()
    table.row(f"{name}: attention backwards taken", taken, wanted, least=True)
    table.row(f"{name}: attention backwards fallen back", fallen, 0)
    if fallen:
        table.note(str(sternway.torch.stats()))


def losses_agree(setting: Setting, half: bool, table: Table) -> float:
    """Losses with enable() on top of each backend against the nearest of PyTorch's own runs. The bound: the largest
    difference between two of PyTorch's backends, over all steps. Returns it."""
    name = "bf16" if half else "f32"
    backends = [b for b in setting.backends if half or setting.device.type == "cpu" or b is not FLASH]  # no f32 flash
    theirs = {b: train(setting, b, half=half, ours=False)[0] for b in backends}
    bound = max((theirs[a] - theirs[b]).abs().max().item() for a in backends for b in backends)
    first = theirs[backends[0]]
    bound = max(bound, 4 * torch.finfo(torch.float32).eps * first[0].item())  # the loss is rounded itself
    table.note(f"{name}: loss {first[0]:.4f} -> {first[-1]:.4f}; PyTorch's backends differ by {bound:.2e}")
    table.row(f"{name}: the loss fell (last/first)", (first[-1] / first[0]).item(), 0.97)
    for backend in backends:
        if backend is MATH:
            continue  # PyTorch's math backend has no operator of its own for the backward
        sternway.torch.reset_stats()
        mine = train(setting, backend, half=half, ours=True)[0]
        nearest = min((mine - losses).abs().max().item() for losses in theirs.values())
        table.row(f"{name}: losses, enable() over {backend.name.lower()}", nearest, bound)
        check_counts(table, f"{name}, {backend.name.lower()}", LAYERS * setting.steps)
    return bound


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def runs_are_bit_equal(setting: Setting, half: bool, table: Table) -> None:
    backends = [EFFICIENT] if setting.device.type == "cuda" and not half else [FLASH]
    for backend in backends:
        with deterministic():
            (loss1, weights1), (loss2, weights2) = (train(setting, backend, half=half, ours=True) for _ in range(2))
        name = f"{'bf16' if half else 'f32'}: deterministic, {backend.name.lower()}"
        table.row(f"{name}: losses that differ", (loss1 != loss2).sum().item(), 0)
        table.row(f"{name}: weights that differ", (weights1 != weights2).sum().item(), 0)


def gradients(setting: Setting, backend: SDPBackend, half: bool, dropout: float, ours: bool) -> torch.Tensor:
    """Gradients of the weights around attention, which see its dropout the most."""
    model = setting.model(dropout)
    torch.manual_seed(11)
    with sdpa_kernel(backend), sternway.torch.enable() if ours else contextlib.nullcontext():
        with setting.autocast(half):
            loss = model(*setting.batch_of(0))
        loss.backward()
    weights = [w for layer in model.layers for w in (layer.qkv.weight, layer.out.weight)]
    return torch.cat([w.grad.flatten() for w in weights]).double()


def dropout_agrees(setting: Setting, table: Table) -> None:
    """Gradients of one step with dropout, drawn from PyTorch's state by PyTorch's forward. Two masks that differ change
    what attention adds by sqrt(p/(1-p)) of it, 0.58; a rounding to bf16 changes an element by 2^-9 of it at most."""
    if setting.device.type == "cpu":
        table.note("dropout: PyTorch's flash operator of the CPU has none")
        return
    for backend, half, bound in ((FLASH, True, 2e-2), (EFFICIENT, True, 2e-2), (EFFICIENT, False, 1e-4)):
        sternway.torch.reset_stats()
        theirs = gradients(setting, backend, half, 0.25, ours=False)
        mine = gradients(setting, backend, half, 0.25, ours=True)
        name = f"dropout, {'bf16' if half else 'f32'}, {backend.name.lower()}"
        table.row(f"{name}: gradients, relative", ((mine - theirs).norm() / theirs.norm()).item(), bound)
        without = gradients(setting, backend, half, 0.0, ours=True)
        table.row(f"{name}: and without dropout they differ", ((without - theirs).norm() / theirs.norm()).item(), 0.1,
                  least=True)
        check_counts(table, name, 2 * LAYERS)


def graph_trains(setting: Setting, bound: float, table: Table) -> None:
    """A whole training step in a CUDA graph: its losses against the eager steps of the same model."""
    if setting.device.type == "cpu":
        table.note("CUDA graph: not on the CPU")
        return
    steps, warm = min(setting.steps, 20), 3
    eager = train(setting, FLASH, half=True, ours=True, steps=steps)[0]
    model = setting.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False, capturable=True)
    tokens, targets = (t.clone() for t in setting.batch_of(0))
    losses = []

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with setting.autocast(True):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def feed(i: int) -> None:
        for static, new in zip((tokens, targets), setting.batch_of(i)):
            static.copy_(new)

    sternway.torch.reset_stats()
    with sdpa_kernel(FLASH), sternway.torch.enable():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(warm):
                feed(i)
                losses.append(step().clone())
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for i in range(warm, steps):  # enable() is over: a graph holds what was captured
        feed(i)
        graph.replay()
        losses.append(loss.clone())
    torch.cuda.synchronize()
    mine = torch.stack(losses).double().cpu()
    table.row(f"CUDA graph: losses of {steps} steps against eager", (mine - eager).abs().max().item(), bound)
    check_counts(table, "CUDA graph", LAYERS * (warm + 1))


def compiled_trains(setting: Setting, half: bool, bound: float, table: Table) -> None:
    """torch.compile(fullgraph=True) of the model, its backward by the library, against the compiled model alone and
    the eager one."""
    backend = FLASH if half or setting.device.type == "cpu" else EFFICIENT
    steps = min(setting.steps, 20)
    theirs = [train(setting, backend, half=half, ours=False, compiled=c, steps=steps)[0] for c in (True, False)]
    bound = max(bound, (theirs[0] - theirs[1]).abs().max().item())
    torch._dynamo.reset()
    sternway.torch.reset_stats()
    mine = train(setting, backend, half=half, ours=True, compiled=True, steps=steps)[0]
    name = f"torch.compile, {'bf16' if half else 'f32'}"
    table.row(f"{name}: losses of {steps} steps", min((mine - t).abs().max().item() for t in theirs), bound)
    check_counts(table, name, LAYERS * steps)
    torch._dynamo.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", default="", help="part of the name of a check")
    options = parser.parse_args()
    setting = Setting(options.device, options.steps)
    table = Table(f"PyTorch {torch.__version__} on {options.device}, {options.steps} steps")
    bounds = {True: 0.05, False: 1e-3}  # of the loss, where `losses` did not run and measure them

    def losses(half: bool) -> None:
        bounds[half] = losses_agree(setting, half, table)

    checks = {"losses, bf16": lambda t: losses(True), "losses, f32": lambda t: losses(False),
              "deterministic, bf16": lambda t: runs_are_bit_equal(setting, True, t),
              "deterministic, f32": lambda t: runs_are_bit_equal(setting, False, t),
              "dropout": lambda t: dropout_agrees(setting, t),
              "graph": lambda t: graph_trains(setting, bounds[True], t),
              "compile, bf16": lambda t: compiled_trains(setting, True, bounds[True], t),
              "compile, f32": lambda t: compiled_trains(setting, False, bounds[False], t)}
    for name, check in checks.items():
        if options.only in name:
            table.run(name, check)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
