# SPDX-License-Identifier: MIT
"""The problems of gpu_peers.py, by suite. A case names its peers; `group` is what its geometric mean is over."""
import dataclasses
import random

FLASH, EFFICIENT, CUDNN = "flash", "efficient", "cudnn"


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
    dim_v: int = 0     # 0: dim
    bias: str = ""     # "bhqk" full, "1hqk" broadcast over the batch
    bias_grad: bool = True
    dropout: str = ""  # the map: philox, mem_eff, flash2
    lengths: tuple = ()  # packed: rows of each sequence
    planned: int = 0     # packed: the longest sequence that the plan allows; 0: the longest there is
    deterministic: bool = False
    peers: tuple = (FLASH, EFFICIENT, CUDNN)

    @property
    def kv(self):
        return self.heads_kv or self.heads

    @property
    def dv(self):
        return self.dim_v or self.dim

    @property
    def name(self):
        """For reading, --only and the CSV; sizes in the words of a PROBLEM line (sternway help)."""
        size = f"b{self.batch}h{self.heads}{f'k{self.kv}' if self.kv != self.heads else ''}s{self.seq}d{self.dim}"
        words = [self.dtype, size + (f"x{self.dv}" if self.dv != self.dim else "")]
        words += ["packed"] if self.lengths else []
        words += [f"planned{self.planned}"] if self.planned else []
        words += [f"bias_{self.bias}" + ("" if self.bias_grad else "_fixed")] if self.bias else []
        words += [f"dropout0.1_{self.dropout}"] if self.dropout else []
        words += ["det"] if self.deterministic else []
        return ":".join(words + ["causal" if self.causal else "full"])

    def flop(self):
        """Five products; a causal mask counts half, as the peers' own benchmarks have it."""
        pairs = sum(n * n for n in self.lengths) if self.lengths else self.batch * self.seq * self.seq
        return (0.5 if self.causal else 1) * pairs * self.heads * 2 * (3 * self.dim + 2 * self.dv)


TOKENS = 16384
LENGTHS = (2411, 513, 1, 4096, 128, 1777, 640, 3000, 37, 256, 1024, 901, 77, 1523)  # 16384 rows


# FlashAttention-3's backward over cuDNN's (9.19), measured in one run on an H200 for the problems of suite fa: by (head dim,
# causal) and sequence length. A board's heat moves both; their ratio holds between boards within 0.03.
FA3_OF_CUDNN = {
    (128, False): {512: 1.05, 1024: 1.10, 2048: 1.10, 4096: 1.11, 8192: 1.13, 16384: 1.14},
    (128, True): {512: 1.08, 1024: 1.14, 2048: 1.16, 4096: 1.20, 8192: 1.22, 16384: 1.18},
    (64, False): {512: 1.17, 1024: 1.18, 2048: 1.19, 4096: 1.21, 8192: 1.23, 16384: 1.24},
    (64, True): {512: 1.17, 1024: 1.22, 2048: 1.29, 4096: 1.34, 8192: 1.37, 16384: 1.36},
}


def fa():
    return [Case(f"fa D{dim} {'causal' if causal else 'full'}", TOKENS // seq, 2048 // dim, seq, dim, causal)
            for dim in (64, 128) for causal in (False, True) for seq in (512, 1024, 2048, 4096, 8192, 16384)]


def deterministic():
    """What the mode costs, beside flash's: the problems of suite fa, grouped heads, and head dims of sm80's kernels."""
    cases = fa() + [case for case in features() if case.group == "GQA 32/8"] + [case for case in dims() if case.seq == 4096]
    return [dataclasses.replace(case, group=f"deterministic {case.group.removeprefix('fa ')}", deterministic=True, peers=("normal", "flash_det"))
            for case in cases]


def packed():
    """38 documents in 32768 rows, planned for their longest and for much longer ones: the same time is wanted."""
    chance = random.Random(5)
    cuts = sorted(chance.sample(range(1, 32768), 37))
    documents = tuple(end - begin for begin, end in zip([0] + cuts, cuts + [32768]))
    return [Case(f"38 documents D{dim} {'causal' if causal else 'full'}", len(documents), 16, max(documents), dim, causal, lengths=documents,
                 planned=planned, peers=(FLASH,))
            for dim in (64, 128) for causal in (False, True) for planned in (0, 8192, 32768, 131072)]


def dims():
    return [Case(f"dims D{dim}", TOKENS // seq, 2048 // dim, seq, dim, causal)
            for dim in (96, 192, 256) for causal in (False, True) for seq in (1024, 4096, 16384)]


def features():
    """cuDNN has no gradient of the bias, memory-efficient no grouped heads and no causal mask beside a bias, flash no unequal head dims."""
    cases = []
    for dim in (64, 128):
        for bias in ("bhqk", "1hqk"):
            cases.append(Case(f"bias {bias}", 4, 2048 // dim, 2048, dim, bias=bias, peers=(EFFICIENT,)))
            cases.append(Case("bias, no gradient of it", 4, 2048 // dim, 2048, dim, bias=bias, bias_grad=False,
                              peers=(EFFICIENT,)))
        for causal in (False, True):
            cases += [Case("dropout mem_eff", 4, 2048 // dim, 4096, dim, causal, dropout="mem_eff", peers=(EFFICIENT,)),
                      Case("dropout flash2", 4, 2048 // dim, 4096, dim, causal, dropout="flash2", peers=(FLASH,)),
                      Case("dropout philox", 4, 2048 // dim, 4096, dim, causal, dropout="philox",
                           peers=(EFFICIENT, FLASH))]
            cases += [Case("GQA 32/8", 4, 32, 4096, dim, causal, heads_kv=8, peers=(FLASH, CUDNN)),
                      Case("varlen", len(LENGTHS), 2048 // dim, max(LENGTHS), dim, causal, lengths=LENGTHS,
                           peers=(FLASH,)),
                      Case("deterministic", 4, 2048 // dim, 4096, dim, causal, deterministic=True,
                           peers=("normal", "flash_det"))]
    cases += [Case("MLA 192/128", TOKENS // seq, 16, seq, 192, causal, dim_v=128, peers=(EFFICIENT, CUDNN))
              for causal in (False, True) for seq in (2048, 8192)]
    cases += [Case("ViT 197", 64, 16, 197, 64), Case("ViT 197", 128, 12, 197, 64)]
    return cases


def f32():
    return [Case(f"f32 D{dim}", max(1, 8192 // seq), 1024 // dim, seq, dim, causal, dtype="f32", peers=(EFFICIENT,))
            for dim in (64, 128) for causal in (False, True) for seq in (512, 2048, 4096)]


def near():
    sizes = [(25, 640), (11, 1500), (5, 3000), (3, 5120), (16, 1001), (4, 4097)]
    return [Case(f"near D{dim}", batch, 12, seq, dim, causal)
            for dim in (64, 128) for causal in (False, True) for heads in (12,) for batch, seq in sizes]


SUITES = {"fa": fa, "dims": dims, "features": features, "f32": f32, "near": near, "deterministic": deterministic, "packed": packed}
