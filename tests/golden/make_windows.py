# SPDX-License-Identifier: MIT
"""Makes windows_flash.safetensors: windows and causal masks as FlashAttention 2's own kernels read them.

Needs a CUDA GPU and PyTorch, whose aten::_flash_attention_forward is FlashAttention 2. Each problem is run forward by
these kernels, which give O and LSE. The float64 forward of attention_reference.py must give the same O and LSE: the LSE
of a row tells which keys it saw, so the reading of the pair (visible_pairs) is proven by the kernels. So must flash's
own gradients and the float64 references that go into the file. `sternway run` reads it.
"""
import argparse
import pathlib

import numpy as np
import torch

import container
from attention_reference import Problem, disagreement, forward, gradients

FOLDER = pathlib.Path(__file__).resolve().parent
FILE = "windows_flash.safetensors"
LIMITS = {torch.float16: 4e-3, torch.bfloat16: 2e-2}       # of O and of gradients, against the largest value
LSE_LIMIT = 1e-4                                           # one key more or less moves it by more

# name: (dtype, (Hq, Hk), D, lengths of queries, of keys, seqused_k, causal, window_size_left, window_size_right); a pair
# (B, S) is dense, a list is varlen
F16, BF16 = torch.float16, torch.bfloat16
SPECS = {
    "left_bf16": (BF16, (1, 1), 16, (1, 257), (1, 128), None, False, 64, -1),
    "left_gqa_f16": (F16, (2, 1), 8, (1, 150), (1, 60), None, False, 10, -1),
    "left_more_keys_f16": (F16, (1, 1), 16, (1, 60), (1, 100), None, False, 10, -1),
    "left_right_past_keys_bf16": (BF16, (1, 1), 8, (1, 200), (1, 70), None, False, 20, 500),
    "right_f16": (F16, (1, 1), 8, (1, 100), (1, 40), None, False, -1, 12),
    "left_at_keys_bf16": (BF16, (1, 1), 8, (1, 90), (1, 128), None, False, 128, 5),
    "left_below_keys_bf16": (BF16, (1, 1), 8, (1, 90), (1, 128), None, False, 127, 5),
    "both_at_keys_f16": (F16, (1, 1), 8, (1, 150), (1, 60), None, False, 60, 60),
    "causal_left_bf16": (BF16, (2, 1), 8, (1, 100), (1, 40), None, True, 16, -1),
    "causal_left_at_keys_f16": (F16, (1, 1), 8, (1, 100), (1, 40), None, True, 40, 7),
    "causal_one_query_f16": (F16, (4, 2), 16, (2, 1), (2, 37), None, True, -1, -1),
    "causal_one_query_left_bf16": (BF16, (2, 2), 16, (2, 1), (2, 37), None, True, 8, -1),
    "varlen_left_bf16": (BF16, (1, 1), 16, [130, 40, 33, 0, 50], [60, 90, 33, 20, 0], None, False, 24, -1),
    "varlen_right_f16": (F16, (1, 1), 8, [130, 40, 33], [60, 90, 33], None, False, -1, 9),
    "varlen_causal_left_f16": (F16, (1, 1), 16, [70, 40, 33], [60, 48, 33], None, True, 12, -1),
    "varlen_used_left_bf16": (BF16, (1, 1), 16, [70, 40, 33], [60, 48, 33], [25, 48, 0], False, 20, -1),
    "varlen_used_causal_f16": (F16, (1, 1), 16, [70, 40, 33], [60, 48, 33], [25, 48, 0], True, -1, -1),
}


def make_inputs(spec, number):
    """q, k, v, dout (and cu_seqlens, used_k) in the file's layout."""
    dtype, (Hq, Hk), D, lengths_q, lengths_k, used_k = spec[:6]
    random = np.random.Generator(np.random.Philox(0x77696E00 + number))
    t = {}
    for name, lengths, heads in (("q", lengths_q, Hq), ("k", lengths_k, Hk), ("v", lengths_k, Hk), ("dout", lengths_q, Hq)):
        lead = (sum(lengths),) if isinstance(lengths, list) else lengths
        t[name] = torch.from_numpy(random.standard_normal((*lead, heads, D))).to(dtype)
    if isinstance(lengths_q, list):
        for side, lengths in (("q", lengths_q), ("k", lengths_k)):
            t[f"cu_seqlens_{side}"] = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    if used_k:
        t["used_k"] = torch.tensor(used_k, dtype=torch.int32)
    return t


def flash_forward(spec, t):
    """O and LSE of PyTorch's FlashAttention 2, in the file's layout."""
    D, lengths_q, lengths_k, _, causal, left, right = spec[2:]
    longest_q, longest_k = (max(x) if isinstance(x, list) else x[1] for x in (lengths_q, lengths_k))
    out, lse = torch.ops.aten._flash_attention_forward(
        t["q"], t["k"], t["v"], t.get("cu_seqlens_q"), t.get("cu_seqlens_k"), longest_q, longest_k, 0.0, causal, False,
        scale=D ** -0.5, window_size_left=left, window_size_right=right, seqused_k=t.get("used_k"))[:2]
    return out, lse


def collect(spec, number, device):
    """Runs one problem on the GPU; returns everything seen, as tensors on the CPU."""
    t = {key: value.to(device) for key, value in make_inputs(spec, number).items()}
    leaves = [t[name].requires_grad_() for name in "qkv"]
    out, lse = flash_forward(spec, t)
    raw = dict(t, out=out, lse=lse)
    if not spec[5]:                                        # flash's backward knows no seqused_k
        raw.update(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, t["dout"])))
    return {key: value.detach().cpu().contiguous() for key, value in raw.items()}


def lse_disagreement(got, want):
    """Largest difference; rows without keys are +inf in flash's and -inf in the reference."""
    empty = torch.isinf(want)
    if not torch.equal(torch.isinf(got), empty):
        return float("inf")
    return disagreement(got[~empty], want[~empty], torch.ones(1))


def finish(name, spec, raw):
    """Checks the reading against flash's O, LSE and gradients; returns the problem with its references."""
    causal, left, right = spec[6:]
    keys = ["q", "k", "v", "dout", "out", "lse"] + [key for key in raw if key.startswith("cu_seqlens") or key == "used_k"]
    problem = Problem({key: raw[key] for key in keys}, {"flash_causal": str(int(causal)), "flash_window_left": str(left),
                                                        "flash_window_right": str(right)})
    out, lse = forward(problem)
    error_lse, error_out = lse_disagreement(raw["lse"], lse), disagreement(raw["out"], out)
    references = gradients(problem)
    errors = {key: disagreement(raw[key], references[f"{key}_ref"]) for key in ("dq", "dk", "dv") if key in raw}
    print(f"{name}: {int(torch.isinf(lse).sum())} of {lse.numel()} rows without keys; LSE {error_lse:.2e} O {error_out:.2e} "
          + " ".join(f"{key} {error:.2e}" for key, error in errors.items()), flush=True)
    for key, value in references.items():
        problem.tensors[key] = value.to(torch.float32)
    good = error_lse <= LSE_LIMIT and max(error_out, *errors.values(), 0.0) <= LIMITS[spec[0]]
    return problem, good


def main():
    parser = argparse.ArgumentParser(description="Makes the golden file of FlashAttention 2's windows on a GPU.")
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER, help="folder for the file")
    parser.add_argument("--save-raw", type=pathlib.Path, help="also keep everything the GPU gave, in this file")
    parser.add_argument("--from-raw", type=pathlib.Path, help="use such a file instead of a GPU")
    options = parser.parse_args()
    if options.from_raw:
        raw = {name: tensors for name, (tensors, _) in container.read_problems(options.from_raw).items()}
    else:
        raw = {name: collect(spec, number, "cuda") for number, (name, spec) in enumerate(SPECS.items())}
    if options.save_raw:
        flat = {f"{name}.{key}": tensor for name, part in raw.items() for key, tensor in part.items()}
        container.write_file(options.save_raw, flat, {"about": "what the GPU gave"})
    problems, wrong = {}, []
    for name, spec in SPECS.items():
        problems[name], good = finish(name, spec, raw[name])
        if not good:
            wrong.append(name)
    if wrong:
        raise SystemExit(f"flash reads its windows in another way, nothing is written: {', '.join(wrong)}")
    container.write_problems(options.out / FILE, problems, {
        "about": "attention backward under FlashAttention 2's windows; out and lse made by its kernels in PyTorch on a GPU",
        "source": "tests/golden/make_windows.py"})


if __name__ == "__main__":
    main()
