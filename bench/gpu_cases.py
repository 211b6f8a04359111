# SPDX-License-Identifier: MIT
"""The problems of gpu_peers.py, by suite. A case names its peers; `group` is what its geometric mean is over."""
import dataclasses
import random

FLASH, EFFICIENT, CUDNN, FLEX, SDPA, FA3 = "flash", "efficient", "cudnn", "flex", "sdpa", "fa3"
FLASH_DET, FA3_DET = "flash_det", "fa3_det"
PLAIN = "plain"  # our own call of the same problem without the feature


@dataclasses.dataclass(frozen=True)
class Case:
    group: str
    batch: int
    heads: int
    seq: int
    dim: int
    causal: bool = False
    dtype: str = "bf16"
    heads_kv: int = 0  # 0: heads
    seq_kv: int = 0    # 0: seq
    dim_v: int = 0     # 0: dim
    softcap: float = 0.0
    alibi: bool = False
    window: int = 0    # keys to the left that a query sees beside its own, none to the right; 0: no window
    bias: str = ""     # "bhqk" full, a 1 where it is broadcast: "1hqk", "b1qk"
    bias_grad: bool = True
    dropout: str = ""  # the map: philox, mem_eff, flash2
    mask: str = ""     # in memory: documents, prefix, sliding, tree, causal; with `causal` but for prefix and causal
    grads: str = ""    # of K and V: "f32", or "acc", f32 added to what is there
    off: str = ""      # off 16 bytes, as in a PROBLEM line: "gap1" (an element behind each head's row), "skew1" (one in front of the tensor)
    lengths: tuple = ()  # packed: rows of each sequence
    planned: int = 0     # packed: the longest sequence that the plan allows; 0: the longest there is
    deterministic: bool = False
    peers: tuple = (CUDNN, FLASH, FA3)

    @property
    def kv(self):
        return self.heads_kv or self.heads

    @property
    def sk(self):
        return self.seq_kv or self.seq

    @property
    def dv(self):
        return self.dim_v or self.dim

    @property
    def name(self):
        """What stands in the CSV and what --only looks at: a PROBLEM line (sternway help) without its operation, but where packed."""
        packed = f"docs{len(self.lengths)}" if self.lengths else f"b{self.batch}"
        size = f"{packed}h{self.heads}{f'k{self.kv}' if self.kv != self.heads else ''}s{self.seq}"
        size += (f"x{self.sk}" if self.sk != self.seq else "") + f"d{self.dim}" + (f"x{self.dv}" if self.dv != self.dim else "")
        words = [self.dtype, size] + (["causal_br"] if self.causal else [])
        words += [f"wl{self.window}", "wr0"] if self.window else []
        words += ["thd"] if self.lengths else []
        words += [f"planned{self.planned}"] if self.planned else []
        words += [f"mask_{self.mask}"] if self.mask else []
        words += [f"softcap{self.softcap:g}"] if self.softcap else []
        words += ["alibi"] if self.alibi else []
        words += [f"bias_{self.bias}"] + (["grads_qkvb"] if self.bias_grad else []) if self.bias else []
        words += ["dropout0.1"] + ([f"map_{self.dropout}"] if self.dropout != "philox" else []) if self.dropout else []
        words += {"": [], "f32": ["dk_f32", "dv_f32"], "acc": ["dk_f32", "dv_f32", "acc_kv"]}[self.grads]
        words += [self.off] if self.off else []
        words += ["det"] if self.deterministic else []
        return ":".join(words)

    def plain(self):
        """The same without what costs more than the plain kernels. Of a mask in memory: all pairs; of the causal one: the causal mask."""
        if self.mask:
            return dataclasses.replace(self, mask="", causal=self.mask == "causal", deterministic=False)
        return dataclasses.replace(self, softcap=0.0, alibi=False, bias="", dropout="", grads="", off="", planned=0, deterministic=False)

    def pairs(self):
        """Pairs of a query and a key for each head. A causal mask counts half, as the peers' own benchmarks have it."""
        if self.window:
            return self.batch * sum(min(i, self.window) + 1 for i in range(self.seq))
        if self.mask:
            return self.batch * mask_pairs(self.mask, self.seq)
        pairs = sum(n * n for n in self.lengths) if self.lengths else self.batch * self.seq * self.sk
        return pairs / 2 if self.causal else pairs

    def flop(self):
        """Five products."""
        return self.pairs() * self.heads * 2 * (3 * self.dim + 2 * self.dv)


TOKENS = 16384



def documents(count, mean, longest, seed=5):
    """Lengths of `count` documents: one is the longest, the others are exponential and make the mean what it is."""
    chance = random.Random(seed)
    weights = [min(chance.expovariate(1), 4) for _ in range(count - 1)]
    rest = count * mean - longest
    lengths = [max(1, min(longest, int(weight / sum(weights) * rest))) for weight in weights]
    return tuple(lengths[:count // 2] + [longest] + lengths[count // 2:])


WINDOW, SINKS, BRANCHES = 1024, 64, 64


def mask_end(mask, seq):
    """The first row behind those that see each key, of masks whose keys are seen by rows from their own on; and, of the prefix, None
    and its length."""
    if mask == "prefix":
        return None, seq // 4
    if mask == "causal":
        return [seq] * seq, 0
    if mask == "sliding":
        return [seq if j < SINKS else min(j + WINDOW + 1, seq) for j in range(seq)], 0
    if mask == "tree":  # a prompt with branches
        prompt = seq // 4
        branch = -(-(seq - prompt) // BRANCHES)
        return [seq] * prompt + [min(prompt + ((j - prompt) // branch + 1) * branch, seq) for j in range(prompt, seq)], 0
    ends = []
    for length in documents(max(seq // 2048, 4), seq // max(seq // 2048, 4), seq // 4):
        ends += [len(ends) + length] * length
    return (ends + [seq] * (seq - len(ends)))[:seq], 0


def mask_pairs(mask, seq):
    ends, prefix = mask_end(mask, seq)
    if ends is None:
        return prefix * seq + sum(seq - j for j in range(prefix, seq))
    return sum(end - j for j, end in enumerate(ends))


def mask_tiles(mask, seq, rows=64, keys=128):
    """The part of tiles that hold a visible pair."""
    ends, prefix = mask_end(mask, seq)
    seen = 0
    for j in range(0, seq, keys):
        last = seq if ends is None else max(ends[j:j + keys])
        first = 0 if ends is None and j < prefix else j
        seen += -(-last // rows) - first // rows
    return seen / (-(-seq // rows) * -(-seq // keys))


def masks():
    """Bounds in memory beside our own call of all pairs, or of the causal mask, and FlexAttention."""
    return [Case(f"mask: {mask}", max(1, 16384 // seq), 2048 // dim, seq, dim, causal=mask not in ("prefix", "causal"), mask=mask, peers=(PLAIN, FLEX))
            for dim in (64, 128) for mask in ("documents", "prefix", "sliding", "tree", "causal") for seq in (8192, 16384)]


def fa():
    return [Case(f"D {dim} {'causal' if causal else 'full'}", TOKENS // seq, 2048 // dim, seq, dim, causal)
            for dim in (64, 128) for causal in (False, True) for seq in (512, 1024, 2048, 4096, 8192, 16384)]


def few_heads():
    """What a rank of tensor parallelism has: few key heads, few work tiles."""
    group, causal = "few key heads", dict(causal=True)
    return [Case(group, 1, 8, 8192, 128, heads_kv=1, **causal), Case(group, 1, 8, 4096, 128, heads_kv=1, **causal),
            Case(group, 1, 16, 8192, 128, heads_kv=2, **causal), Case(group, 1, 32, 2048, 128, heads_kv=8, **causal),
            Case(group, 1, 8, 8192, 64, heads_kv=1, **causal), Case(group, 1, 8, 8192, 128, heads_kv=1),
            Case(group, 1, 8, 8192, 256, heads_kv=1, **causal), Case(group, 1, 8, 4096, 256, heads_kv=1),
            Case(group, 1, 8, 8192, 192, heads_kv=1, **causal), Case(group, 1, 8, 8192, 192, heads_kv=1, dim_v=128, **causal),
            Case(group, 16, 8, 2048, 128, heads_kv=1, lengths=documents(16, 1024, 2048), peers=(FLASH, FA3), **causal)]


def few_heads_scores():
    """The same with what is done to scores: a rank of a model with a softcap, ALiBi, dropout."""
    group, few = "few key heads, features", dict(causal=True, heads_kv=1)
    return [Case(group, 1, 8, 8192, 128, softcap=30.0, peers=(PLAIN, FA3), **few), Case(group, 1, 8, 8192, 256, softcap=30.0, peers=(PLAIN, FA3), **few),
            Case(group, 1, 8, 8192, 128, alibi=True, peers=(PLAIN, FLEX), **few),
            Case(group, 1, 8, 8192, 128, dropout="flash2", peers=(PLAIN, FLASH), **few),
            Case(group, 1, 8, 8192, 256, dropout="flash2", peers=(PLAIN, FLASH), **few),
            Case(group, 1, 8, 8192, 192, grads="f32", peers=(PLAIN, ), **few)]


def groups():
    """Many query heads a key head, with enough work."""
    group = "MQA, large groups"
    return [Case(group, 2, 32, 8192, 128, True, heads_kv=1), Case(group, 1, 128, 4096, 128, True, heads_kv=8),
            Case(group, 1, 64, 4096, 128, True, heads_kv=8), Case(group, 4, 32, 4096, 64, True, heads_kv=8),
            Case(group, 4, 32, 4096, 128, True, heads_kv=8), Case(group, 4, 32, 4096, 128, heads_kv=8)]


def scores():
    """What is done to scores. FlexAttention is compiled."""
    cases = [Case("softcap", 4, 2048 // dim, seq, dim, causal, softcap=30.0, peers=(PLAIN, FA3, FLEX))
             for dim, seq in ((128, 4096), (64, 4096), (256, 4096)) for causal in (True, False)]
    return cases + [Case("ALiBi", 4, 2048 // dim, 4096, dim, causal, alibi=True, peers=(PLAIN, FLEX))
                    for dim in (128, 64) for causal in (True, False)]


def dims():
    cases = [Case(f"D {dim} {'causal' if causal else 'full'}", TOKENS // seq, 2048 // dim, seq, dim, causal)
             for dim in (96, 192, 256) for causal in (False, True) for seq in (1024, 4096, 16384)]
    cases += [Case(f"D {dim}", 4, 16, 4096, dim, causal) for dim in (136, 160, 224) for causal in (False, True)]
    return cases + [Case(f"D 192/128 {'causal' if causal else 'full'}", TOKENS // seq, 16, seq, 192, causal, dim_v=128, peers=(CUDNN, FA3))
                    for causal in (False, True) for seq in (2048, 4096, 8192)]


def dropout():
    cases = []
    for dim in (64, 128):
        for causal in (True, False):
            cases += [Case("dropout, own map", 4, 2048 // dim, 4096, dim, causal, dropout="philox", peers=(PLAIN, CUDNN, FLASH)),
                      Case("dropout, flash's map", 4, 2048 // dim, 4096, dim, causal, dropout="flash2", peers=(PLAIN, FLASH, CUDNN)),
                      Case("dropout, memory-efficient's map", 4, 2048 // dim, 4096, dim, causal, dropout="mem_eff", peers=(PLAIN, EFFICIENT))]
    return cases


def dropout_more():
    """At wide heads, with ALiBi, with a bias."""
    cases = [Case(f"dropout, D {dim}", 4, 2048 // dim, 4096, dim, causal, dropout=kind, peers=(PLAIN, FLASH))
             for dim in (192, 256) for causal, kind in ((True, "flash2"), (True, "philox"), (False, "mem_eff"))]
    for dim in (64, 128):
        cases += [Case("dropout and ALiBi", 4, 2048 // dim, 4096, dim, True, alibi=True, dropout=kind, peers=(PLAIN,)) for kind in ("flash2", "philox")]
        cases += [Case("dropout and a bias", 4, 2048 // dim, 2048, dim, bias=kind, bias_grad=kind[0] == "1", dropout="flash2", peers=(PLAIN,))
                  for kind in ("1hqk", "b1qk")]
    return cases


def grads():
    return [Case("f32 dK, dV" if kind == "f32" else "accumulated dK, dV", 4, 2048 // dim, 4096, dim, causal, grads=kind, peers=(PLAIN,))
            for kind in ("f32", "acc") for dim in (128, 64) for causal in (True, False)]


def off16():
    cases = [Case("off 16 bytes", 4, 2048 // dim, 4096, dim, True, off=off, peers=(PLAIN,)) for off in ("gap1", "skew1") for dim in (128, 64)]
    return cases + [Case("D 34, 66, 100", 4, 16, 4096, dim, causal, peers=(SDPA,)) for dim in (34, 66, 100) for causal in (True, False)]


def short():
    group = "short sequences"
    return [Case(group, 256, 12, 128, 64), Case(group, 512, 12, 64, 64), Case(group, 2048, 6, 49, 32), Case(group, 256, 12, 77, 64, True),
            Case(group, 128, 12, 197, 64), Case(group, 64, 16, 197, 64), Case(group, 256, 12, 128, 64, True), Case(group, 128, 16, 256, 128)]


def packed():
    """A generous maximum is to cost nothing. (PyTorch 2.11's cuDNN operator gives other gradients for packed tensors.)"""
    cases = []
    for count, mean, longest in ((38, 1024, 8192), (70, 512, 4096), (304, 128, 1024)):
        lengths = documents(count, mean, longest)
        for dim, causal in ((128, True), (128, False), (64, True)):
            cases.append(Case(f"packed, mean {mean}", count, 2048 // dim, longest, dim, causal, lengths=lengths, peers=(FLASH, FA3)))
    first = cases[0]
    return cases + [dataclasses.replace(first, group="packed, generous maximum", planned=planned, peers=(PLAIN, FLASH, FA3))
                    for planned in (32768, 131072)]


def small():
    group = "small calls"
    return [Case(group, 1, 8, 1024, 64, True), Case(group, 1, 8, 512, 64, True), Case(group, 1, 1, 128, 64), Case(group, 2, 8, 256, 128, True)]


def cross():
    cases = [Case("few queries, long keys", 8, 16, queries, 128, seq_kv=16384) for queries in (1, 8, 64)]
    return cases + [Case("long queries, few keys", 8, 16, 4096, dim, seq_kv=77) for dim in (64, 128)]


def near():
    sizes = [(25, 640), (11, 1500), (5, 3000), (3, 5120), (16, 1001), (4, 4097)]
    return [Case(f"near, D {dim}", batch, 12, seq, dim, causal) for dim in (64, 128) for causal in (False, True) for batch, seq in sizes]


def windows():
    return [Case("windows", 2, 2048 // dim, 8192, dim, window=window, peers=(FLASH, FA3)) for dim in (64, 128) for window in (511, 1023)]


def bias():
    """cuDNN has no gradient of the bias; memory-efficient has no causal mask beside one."""
    cases = []
    for dim in (64, 128):
        cases += [Case("bias without gradient", 4, 2048 // dim, 2048, dim, bias=kind, bias_grad=False, peers=(PLAIN, CUDNN, EFFICIENT))
                  for kind in ("b1qk", "bhqk", "1hqk")]
        cases += [Case(f"bias with {'broadcast ' if kind[0] == '1' else ''}gradient", 4, 2048 // dim, 2048, dim, bias=kind, peers=(PLAIN, EFFICIENT))
                  for kind in ("1hqk", "bhqk")]
    return cases


def deterministic():
    """What the mode costs, beside the peers' modes."""
    cases = fa() + [case for case in groups() if case.heads == 32 and case.kv == 8] + [case for case in dims() if case.seq == 4096 and case.dim in (192, 256)]
    return [dataclasses.replace(case, group=f"deterministic, {'GQA 32/8' if case.heads_kv else case.group}", deterministic=True,
                                peers=(PLAIN, FLASH_DET, FA3_DET)) for case in cases]


def f32():
    return [Case(f"f32, D {dim}", max(1, 8192 // seq), 1024 // dim, seq, dim, causal, dtype="f32", peers=(EFFICIENT,))
            for dim in (64, 128) for causal in (False, True) for seq in (512, 2048, 4096)]


def classes():
    """One or two of every class, for a look in a minute: the first of each group of the other suites, or what is named."""
    wanted = {fa: ("b16h32s1024d64:causal_br", "b4h16s4096d128$"), few_heads: ("b1h8k1s8192d128:causal_br", "b1h32k8s2048", "docs16"),
              groups: ("b2h32k1", "b1h64k8"), scores: ("d128:causal_br:softcap", "d128:causal_br:alibi"),
              dims: ("b4h10s4096d192$", "b4h8s4096d256$", "s4096d192x128:causal_br"),
              dropout: ("d64:causal_br:dropout0.1$", "d128:causal_br:dropout0.1:map_flash2"), grads: ("d128:causal_br:dk_f32:dv_f32$", "acc_kv"),
              off16: ("d128:causal_br:gap1", "d100:causal_br"), short: ("b256h12s128d64$", "b2048h6s49", "b128h12s197"),
              packed: ("docs38h16s8192d128:causal_br:thd$", "docs304h16s1024d128:causal_br", "planned131072"),
              small: ("b1h8s1024", "b1h1s128"), cross: ("s1x16384", "s4096x77d64"), near: ("b5h12s3000d64:causal_br",), windows: ("d128:wl1023",),
              bias: ("d64:bias_b1qk", "d64:bias_1hqk:grads"), deterministic: ("b4h16s4096d128:causal_br:det",)}
    return [next(case for case in suite() if name.rstrip("$") in case.name and (name[-1] != "$" or case.name.endswith(name[:-1])))
            for suite, names in wanted.items() for name in names]


SUITES = {suite.__name__: suite for suite in (fa, few_heads, few_heads_scores, groups, scores, dims, dropout, dropout_more, grads, off16, short, packed,
                                              small, cross, near, windows, bias, deterministic, f32, masks, classes)}
