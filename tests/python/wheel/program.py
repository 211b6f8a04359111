# SPDX-License-Identifier: MIT
"""What a user of the installed wheel does: program.py bare|numpy

bare: import without numpy and PyTorch, info(), explain(), the command. numpy: the backward of attention and of a nested
softmax against plain formulas in float64."""
from __future__ import annotations

import pathlib
import subprocess
import sys


def command(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-I", "-m", "sternway", *words], capture_output=True, text=True, check=False)


def bare() -> None:
    import sternway

    package = pathlib.Path(sternway.__file__).parent
    if pathlib.Path(sys.prefix) not in package.parents:
        sys.exit(f"{package} is not in this environment")
    if "numpy" in sys.modules or "torch" in sys.modules:
        sys.exit("import sternway loads numpy or PyTorch")
    info = sternway.info()
    if info["version"] != sternway.__version__ or not any(row["backend"] == "cpu" for row in info["devices"]):
        sys.exit(f"sternway.info(): {info}")
    text = sternway.explain(backend="cpu", seq_q=33, seq_kv=65, head_dim=40, heads_q=4, heads_kv=2,
                            mask=sternway.Mask.CAUSAL_TOP_LEFT)
    if "cpu: chosen" not in text:
        sys.exit(f"sternway.explain(): {text}")
    problem = ["explain", "--backend", "cpu", "attn_bwd:f32:b1h1s8d8"]
    for words, expected in (["info"], sternway.__version__), (problem, "cpu: chosen"):
        done = command(*words)
        if done.returncode or expected not in done.stdout:
            sys.exit(f"python -m sternway {words}: {done.returncode}\n{done.stdout}{done.stderr}")
    if command("no-such-command").returncode == 0:
        sys.exit("python -m sternway no-such-command: exit status 0")
    print(f"Python {sys.version.split()[0]}: sternway {sternway.__version__}, {len(info['images'])} device images")


def attention(dtype: str, bound: float) -> None:
    """GQA under a causal mask (top left): dQ, dK, dV by the softmax's derivative, dS = P (dP - sum(P dP))."""
    import numpy as np
    import sternway

    random = np.random.default_rng(20)
    batch, heads, groups, rows, keys, dim = 2, 3, 2, 37, 41, 24
    shape = (batch, heads * groups, rows, dim)
    q, dout = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    k, v = (random.standard_normal((batch, heads, keys, dim)).astype(dtype) for _ in range(2))
    q64, dout64 = (a.astype("f8").reshape(batch, heads, groups, rows, dim) for a in (q, dout))
    k64, v64 = (a.astype("f8")[:, :, None] for a in (k, v))
    scale = dim ** -0.5
    scores = np.where(np.tril(np.ones((rows, keys), bool)), q64 @ k64.swapaxes(-1, -2) * scale, -np.inf)
    top = scores.max(-1, keepdims=True)
    total = np.exp(scores - top).sum(-1, keepdims=True)
    p = np.exp(scores - top) / total
    out64, lse64 = p @ v64, (top + np.log(total))[..., 0]
    dp = dout64 @ v64.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    expected = (ds @ k64, (ds.swapaxes(-1, -2) @ q64).sum(2), (p.swapaxes(-1, -2) @ dout64).sum(2))
    lse_type = "f8" if dtype == "f8" else "f4"
    out, lse = sternway.attn_fwd(q, k, v, mask=sternway.Mask.CAUSAL_TOP_LEFT)
    np.testing.assert_allclose(out.reshape(out64.shape), out64, rtol=0, atol=bound)
    np.testing.assert_allclose(lse.reshape(lse64.shape), lse64, rtol=0, atol=bound)
    out, lse = out64.reshape(shape).astype(dtype), lse64.reshape(shape[:3]).astype(lse_type)
    gradients = sternway.attn_bwd(dout, q, k, v, out, lse, mask=sternway.Mask.CAUSAL_TOP_LEFT)
    for name, got, want in zip(("dq", "dk", "dv"), gradients, expected):
        worst = float(abs(got.reshape(want.shape) - want).max())
        if not worst <= bound * abs(want).max():
            sys.exit(f"{name} of {dtype}: off by {worst:g}")


def softmax() -> None:
    """dX = Y (dY - sum(Y dY)) of three rows of unlike length."""
    import numpy as np
    import sternway

    random, offsets = np.random.default_rng(21), np.array([0, 5, 6, 17], "i8")
    logits, grad = (random.standard_normal((17, 3)) for _ in range(2))
    y = np.concatenate([np.exp(part) / np.exp(part).sum(0) for part in np.split(logits, offsets[1:-1])])
    rows = zip(*(np.split(x, offsets[1:-1]) for x in (y, grad)))
    expected = np.concatenate([a * (b - (a * b).sum(0)) for a, b in rows])
    dx = sternway.jagged.softmax_backward(grad.astype("f4"), y.astype("f4"), offsets, 0)
    np.testing.assert_allclose(dx, expected, rtol=0, atol=1e-6)


def main() -> None:
    if sys.argv[1] == "bare":
        bare()
        return
    attention("f4", 2e-6)
    attention("f8", 1e-14)
    softmax()
    print(f"Python {sys.version.split()[0]}: gradients agree with float64")


if __name__ == "__main__":
    main()
