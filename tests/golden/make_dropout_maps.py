# SPDX-License-Identifier: MIT
"""Makes dropout_mem_eff.safetensors and dropout_flash2.safetensors: dropout as PyTorch's own GPU kernels draw it.

Needs a CUDA GPU. Each problem is run forward and backward by PyTorch's kernels, which give O, LSE, seed and offset;
a second forward from the same generator state with one-hot rows as V shows which elements were kept. The script
verifies that dropout_maps.py draws the same masks, and that PyTorch's gradients agree with the float64 references
(attention_reference.py) that go into the files. `sternway run` and the conformance suite read them.
"""
import argparse
import pathlib

import numpy as np
import torch

import container
import dropout_maps
from attention_reference import Problem, disagreement, dropout_factors, gradients, sequences, visible_pairs

FOLDER = pathlib.Path(__file__).resolve().parent
SEED = 0x0123456789ABCDEF
LIMITS = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}
TOP_LEFT = 1           # custom_mask_type of the memory-efficient operators

# name: (dtype, (Hq, Hk), D, lengths of queries, of keys, p, causal); a pair (B, S) is dense, a list is varlen
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
MEM_EFF = {
    "dense_f16": (F16, (2, 2), 16, (2, 21), (2, 37), 0.2, False),
    "dense_f32": (F32, (2, 2), 8, (1, 17), (1, 21), 0.5, False),
    "causal_tl_bf16": (BF16, (3, 3), 8, (2, 33), (2, 26), 0.1, True),
    "varlen_bf16": (BF16, (2, 2), 16, [9, 17, 5], [13, 7, 20], 0.3, False),
}
FLASH2 = {
    "dense_f16": (F16, (2, 2), 16, (2, 21), (2, 37), 0.2, False),
    "causal_p60_bf16": (BF16, (3, 3), 16, (1, 35), (1, 35), 0.6, True),
    "gqa_bf16": (BF16, (4, 2), 8, (1, 19), (1, 43), 0.1, False),
    "varlen_f16": (F16, (2, 2), 16, [9, 17, 5], [13, 7, 20], 0.3, False),
}
# larger, for the masks alone: several tiles each way; not written
MEM_EFF_WIDE = {"wide": (F16, (2, 2), 16, (2, 150), (2, 200), 0.1, False),
                "wide_varlen": (F16, (2, 2), 16, [70, 130], [190, 75], 0.25, False)}
FLASH2_WIDE = {"wide": (F16, (2, 2), 16, (2, 150), (2, 200), 0.1, False),
               "wide_p80": (BF16, (3, 3), 16, (1, 140), (1, 150), 0.8, False),
               "wide_p90": (BF16, (1, 1), 16, (1, 140), (1, 150), 0.9, False),
               "wide_varlen": (F16, (2, 2), 16, [70, 130], [190, 75], 0.25, False)}


def make_inputs(spec, number):
    """q, k, v, dout (and cu_seqlens) in the file's layout."""
    dtype, (Hq, Hk), D, lengths_q, lengths_k, p, causal = spec
    random = np.random.Generator(np.random.Philox(number))
    t = {}
    for name, lengths, heads in (("q", lengths_q, Hq), ("k", lengths_k, Hk), ("v", lengths_k, Hk), ("dout", lengths_q, Hq)):
        lead = (sum(lengths),) if isinstance(lengths, list) else lengths
        t[name] = torch.from_numpy(random.standard_normal((*lead, heads, D))).to(dtype)
    if isinstance(lengths_q, list):
        for side, lengths in (("q", lengths_q), ("k", lengths_k)):
            t[f"cu_seqlens_{side}"] = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    return t


def one_hot_values(spec, t, width):
    """V whose row j (of each sequence) is the unit vector j: O is then P.Z itself."""
    lengths = spec[4]
    v = torch.zeros(*t["v"].shape[:-1], width, dtype=t["v"].dtype)
    if isinstance(lengths, list):
        rows = torch.cat([torch.arange(length) for length in lengths])
        v[torch.arange(len(rows)), :, rows] = 1.0
    else:
        rows = torch.arange(lengths[1])
        v[:, rows, :, rows] = 1.0
    return v


def unsigned(tensor):
    return int(tensor) & (2 ** 64 - 1)


def mem_eff_forward(spec, t):
    """The operator's O, padded LSE, seed and offset."""
    p, causal = spec[5:]
    scale = spec[2] ** -0.5
    if isinstance(spec[3], list):
        out, lse, seed, offset, _, _ = torch.ops.aten._efficient_attention_forward(
            t["q"][None], t["k"][None], t["v"][None], None, t["cu_seqlens_q"], t["cu_seqlens_k"],
            max(spec[3]), max(spec[4]), p, 0, True, scale=scale)
        return out[0], lse, seed, offset
    q, k, v = (t[name].transpose(1, 2) for name in "qkv")
    out, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, p, causal, scale=scale)
    return out.transpose(1, 2), lse, seed, offset


def flash2_forward(spec, t, debug=False):
    """O, LSE, the two generator tensors and the debug mask; D is padded with zeros where V is wider."""
    p, causal = spec[5:]
    pad = t["v"].shape[-1] - t["q"].shape[-1]
    q, k = (torch.nn.functional.pad(t[name], (0, pad)) for name in "qk")
    scale = spec[2] ** -0.5
    if isinstance(spec[3], list):
        out, lse, state, unused, mask = torch.ops.aten._flash_attention_forward(
            q, k, t["v"], t["cu_seqlens_q"], t["cu_seqlens_k"], max(spec[3]), max(spec[4]), p, causal, debug, scale=scale)
        return out, lse, state, unused, mask
    q, k, v = (x.transpose(1, 2) for x in (q, k, t["v"]))
    result = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, causal, debug, scale=scale)
    return result[0].transpose(1, 2), result[1], result[6], result[7], result[8]


def set_generator_offset(offset):
    torch.cuda.default_generators[torch.cuda.current_device()].set_offset(offset)


def packed_lse(spec, lse):
    """The operators' LSE in the file's layout: [B,H,Sq] or [H,T], without padding."""
    if not isinstance(spec[3], list):
        return lse[:, :, :spec[3][1]].contiguous()
    if lse.dim() == 2:
        return lse[:, :sum(spec[3])].contiguous()
    return torch.cat([lse[b, :, :length] for b, length in enumerate(spec[3])], 1)


def collect(kind, name, spec, number, device):
    """Runs one problem on the GPU; returns everything seen, as tensors on the CPU."""
    t = {key: value.to(device) for key, value in make_inputs(spec, number).items()}
    torch.cuda.manual_seed(SEED + number)
    set_generator_offset(4 * number + (2 ** 34 if number % 2 else 0))
    state = torch.cuda.get_rng_state()
    longest = max(spec[4]) if isinstance(spec[4], list) else spec[4][1]
    width = max(-(-longest // 8) * 8, spec[2])
    seen = dict(t, v=one_hot_values(spec, t, width).to(device))
    forward = mem_eff_forward if kind == "mem_eff" else flash2_forward
    leaves = [t[name].requires_grad_() for name in "qkv"]
    result = forward(spec, t)
    grads = torch.autograd.grad(result[0], leaves, t["dout"])   # calls the operator's own backward
    torch.cuda.set_rng_state(state)
    again = forward(spec, seen)
    if result[2].numel() == 2:
        seed, offset = (part.reshape(()) for part in result[2].cpu().view(torch.int64).reshape(2, 1))
    else:
        seed, offset = (part.cpu().view(torch.int64) for part in result[2:4])
    assert torch.equal(result[2].cpu(), again[2].cpu()), "the generator state differs"
    torch.testing.assert_close(packed_lse(spec, result[1]), packed_lse(spec, again[1]), atol=1e-4, rtol=0.0)
    raw = dict(t, out=result[0], lse=packed_lse(spec, result[1]), shown=again[0][..., :longest],
               dq=grads[0], dk=grads[1], dv=grads[2], seed=seed, offset=offset)
    if kind == "flash2":
        torch.cuda.set_rng_state(state)
        raw["debug"] = flash2_forward(spec, t, debug=True)[4]
    return {key: value.detach().cpu().contiguous() for key, value in raw.items()}


def finish(kind, name, spec, raw):
    """Checks the mask and PyTorch's gradients; returns the problem with its references."""
    p, causal = spec[5:]
    keys = ["q", "k", "v", "dout", "out", "lse"] + [key for key in raw if key.startswith("cu_seqlens")]
    problem = Problem({key: raw[key] for key in keys}, {
        "mask": ("causal_tl" if kind == "mem_eff" else "causal_br") if causal else "none", "dropout_p": repr(p),
        "dropout_seed": str(unsigned(raw["seed"])), "dropout_offset": str(unsigned(raw["offset"])), "dropout_map": kind})
    wrong = total = kept = debug_wrong = 0
    for seq in sequences(problem):
        visible = torch.from_numpy(visible_pairs(problem, seq))
        kept_here = torch.from_numpy(dropout_factors(problem, seq) > 0.0)
        shown = raw["shown"][seq.q_rows].transpose(0, 1)[:, :, :seq.length_k] != 0.0
        wrong += int(((shown != kept_here) & visible).sum())
        total += int(visible.sum()) * shown.shape[0]
        kept += int((kept_here & visible).sum())
        if "debug" in raw and raw["debug"].dim() == 4:
            signs = ~torch.signbit(raw["debug"][seq.index][:, :seq.length_q, :seq.length_k].float())
            debug_wrong += int(((signs != kept_here) & visible).sum())
    references = gradients(problem)
    # PyTorch 2.11's memory-efficient backward draws another mask than its forward for packed sequences: its gradients
    # are checked with the mask that it drew, and the references keep the one that O was made with
    as_torch = references
    if kind == "mem_eff" and problem.varlen:
        as_torch = gradients(Problem(problem.tensors, dict(problem.meta, dropout_map="mem_eff_backward")))
    errors = {key: disagreement(raw[key], as_torch[f"{key}_ref"]) for key in ("dq", "dk", "dv")}
    print(f"{kind} {name}: seed {problem.meta['dropout_seed']} offset {problem.meta['dropout_offset']} p {p}: kept "
          f"{kept / total:.4f} of {total}; mask differs in {wrong}, debug mask in {debug_wrong}; gradients "
          + " ".join(f"{key} {error:.2e}" for key, error in errors.items()), flush=True)
    good = wrong == 0 and max(errors.values()) <= LIMITS[spec[0]]
    for key, value in references.items():
        problem.tensors[key] = value if spec[0] == torch.float32 else value.to(torch.float32)
    return problem, good


def main():
    parser = argparse.ArgumentParser(description="Makes the golden files of PyTorch's dropout maps on a GPU.")
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER, help="folder for the two files")
    parser.add_argument("--save-raw", type=pathlib.Path, help="also keep everything the GPU gave, in this file")
    parser.add_argument("--from-raw", type=pathlib.Path, help="use such a file instead of a GPU")
    options = parser.parse_args()
    dropout_maps.check_known_answers()
    groups = {"mem_eff": (MEM_EFF, MEM_EFF_WIDE), "flash2": (FLASH2, FLASH2_WIDE)}
    specs = {f"{kind}_{name}": (kind, name, spec) for kind, parts in groups.items() for part in parts for name, spec in part.items()}
    if options.from_raw:
        raw = {name: tensors for name, (tensors, _) in container.read_problems(options.from_raw).items()}
    else:
        raw = {}
        for number, (key, value) in enumerate(specs.items()):
            try:
                raw[key] = collect(*value, number, "cuda")
            except (RuntimeError, AssertionError) as error:
                print(f"{key}: FAILED: {error}", flush=True)
    if options.save_raw:
        flat = {f"{name}.{key}": tensor for name, part in raw.items() for key, tensor in part.items()}
        container.write_file(options.save_raw, flat, {"about": "what the GPU gave"})
    good = len(raw) == len(specs)
    for kind, (written, _) in groups.items():
        problems = {}
        for key, (of_kind, name, spec) in specs.items():
            if of_kind == kind and key in raw:
                problem, fine = finish(kind, name, spec, raw[key])
                good &= fine
                if name in written:
                    problems[name] = problem
        container.write_problems(options.out / f"dropout_{kind}.safetensors", problems, {
            "about": f"attention backward with the dropout map {kind}; out, lse, seed and offset made by PyTorch on a GPU",
            "source": "tests/golden/make_dropout_maps.py"})
    raise SystemExit(0 if good else "a mask or a gradient differs: see above")


if __name__ == "__main__":
    main()
