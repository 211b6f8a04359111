#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random jagged problems on a GPU (or an emulator behind the driver's name) against float64: every op, both storages,
gaps, empty components, any alignment, f32 outputs, accumulation. What may not be touched is guarded and compared.

    python tests/gpu/check_jagged.py --backend cuda|hip|cpu [--count N] [--seed N] [--only OP]

Exit status 1 with the first problems that are wrong. Needs torch (on the CPU) for float64 and 16-bit types, and the Python package
(installed, or build/release/python)."""
import argparse
import math
import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from calls import native, open_or_exit
import nested_calls as J

TYPES = {1: torch.float16, 2: torch.bfloat16, 3: torch.float32}
ULP = {1: 2.0 ** -11, 2: 2.0 ** -8, 3: 2.0 ** -23}
POISON = 0x7FC1  # a NaN in 16 bits, as two of them in f32
GUARD = 256


class Memory:
    """Device memory with what is in it on the host, guards around."""

    def __init__(self, api, host, lead=0):
        self.host = host.contiguous()
        self.bytes = host.numel() * host.element_size()
        self.lead = GUARD + lead * host.element_size()
        size = self.lead + self.bytes + GUARD
        self.context = api.context
        self.base = self.context.buffer_alloc(size)
        self.image = torch.full((size + size % 2,), 0, dtype=torch.uint8).view(torch.int16).fill_(POISON).view(torch.uint8)[:size].clone()
        if self.bytes:
            self.image[self.lead:self.lead + self.bytes] = self.host.view(-1).view(torch.uint8)
        self.context.copy(self.base, self.image.data_ptr(), size, 0)
        self.context.stream_synchronize(0)

    @property
    def at(self):
        return self.base + self.lead

    def read(self):
        """The contents; None when a guard was touched."""
        back = torch.empty_like(self.image)
        self.context.copy(back.data_ptr(), self.base, back.numel(), 0)
        self.context.stream_synchronize(0)
        low, high = self.lead, self.lead + self.bytes
        if not torch.equal(back[:low], self.image[:low]) or not torch.equal(back[high:], self.image[high:]):
            return None
        return back[low:high].clone().view(self.host.dtype) if self.bytes else self.host.view(-1)

    def free(self):
        self.context.buffer_free(self.base)


def poison(count, dtype):
    if dtype in (torch.float16, torch.bfloat16):
        return torch.full((count,), POISON, dtype=torch.int16).view(dtype)
    return torch.full((count,), POISON * 65537, dtype=torch.int32).view(torch.float32)


class Axis:
    def __init__(self, rng, components, longest, used, gaps_between=True):
        self.lengths = [0 if rng.random() < .2 else rng.randint(1, longest) for _ in range(components)]
        if components > 2 and rng.random() < .3:
            self.lengths[rng.randrange(components)] = longest * 5
        before = rng.choice([0, 0, 3]) if gaps_between else 0
        self.starts = [before]
        for length in self.lengths:
            self.starts.append(self.starts[-1] + length)
        self.total = self.starts[-1] + (rng.choice([0, 0, 5]) if gaps_between else 0)
        self.used = [rng.randint(0, n) if rng.random() < .5 else n for n in self.lengths] if used else None
        self.live = self.lengths if self.used is None else self.used
        self.size = max(self.lengths + [0]) + rng.choice([0, 4])


def components_of(axis, storage, outer, inner):
    """Element numbers of each component as [outer, L, inner]."""
    found = []
    for b, length in enumerate(axis.lengths):
        o, r, i = torch.meshgrid(torch.arange(outer), torch.arange(length), torch.arange(inner), indexing="ij")
        if storage == "jagged":
            found.append((o * axis.total + axis.starts[b] + r) * inner + i)
        else:
            found.append(axis.starts[b] * outer * inner + (o * length + r) * inner + i)
    return found


def randoms(count, dtype, generator):
    return torch.randn(count, generator=generator, dtype=torch.float32).to(dtype)


class Case:
    def __init__(self, seed, only):
        rng = self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.op = only or rng.choice(["gelu", "gelu_tanh", "silu", "threshold", "softmax", "softmax", "log_softmax",
                                      "layer_norm", "layer_norm", "rms_norm",
                                      "sum", "select", "reshape", "to_padded", "from_padded", "linear", "linear", "matmul",
                                      "matmul"])
        self.dtype = rng.choice([1, 2, 2, 3])
        self.type = TYPES[self.dtype]
        self.full = self.op == "linear_full"  # enough for the vendor's library
        if self.full:
            self.op = "linear"
        self.components = rng.choice([0, 1, 3, 3, 7, 20]) if not self.full else 7
        self.axis = Axis(rng, self.components, rng.choice([3, 17, 60]) if not self.full else 200,
                         rng.random() < .4 and not self.full, not self.full)
        self.storage = rng.choice(["components", "jagged"])
        self.outer = rng.choice([1, 1, 2, 3, 6])
        self.fields = dict(index_dtype=rng.choice([native.I32, native.I64]), storage=J.STORAGE[self.storage], components=self.components,
                           outer=self.outer)
        self.wide = self.dtype == 3 or rng.random() < .25
        self.add = self.wide and rng.random() < .4
        self.lead = rng.choice([0, 0, 1, 4])
        self.memory, self.outputs, self.pointers = {}, {}, {}
        if self.axis.used is not None:
            self.fields["flags"] = native.JAGGED_HAS_USED

    def give(self, api, name, host):
        """An input; NaN already stands where nothing may be read."""
        self.memory[name] = Memory(api, host, self.lead)
        self.pointers[name] = self.memory[name].at

    def want(self, api, name, expected, live, wide, add):
        """An output: float64 values, and which elements are written."""
        dtype = torch.float32 if wide else self.type
        before = poison(expected.numel(), dtype)
        if add:
            before = torch.randn(expected.numel(), generator=self.generator)
            expected = torch.where(live, expected + before.double(), expected)
        self.memory[name] = Memory(api, before, self.lead)
        self.pointers[name] = self.memory[name].at
        self.outputs[name] = (before, expected, live, 3 if wide else self.dtype)

    def nested(self, inner, outer=None):
        """Random values of a nested tensor: the buffer (NaN where nothing is read), its components in float64."""
        index = components_of(self.axis, self.storage, self.outer if outer is None else outer, inner)
        count = self.axis.total * (self.outer if outer is None else outer) * inner
        buffer = torch.full((count,), math.nan).to(self.type)
        values = []
        for b, at in enumerate(index):
            fill = randoms(at.numel(), self.type, self.generator).view(at.shape)
            fill[:, self.axis.live[b]:] = math.nan
            buffer[at.reshape(-1)] = fill.reshape(-1)
            values.append(fill.double()[:, :self.axis.live[b]])
        return buffer, values, index

    def scatter(self, values, index, count):
        """Expected buffer and mask from components that are live in their first positions, zero behind."""
        expected, live = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.bool)
        for b, at in enumerate(index):
            full = torch.zeros(at.shape, dtype=torch.float64)
            full[:, :self.axis.live[b]] = values[b]
            expected[at.reshape(-1)] = full.reshape(-1)
            live[at.reshape(-1)] = True
        return expected, live

    def dims(self, inner):
        """dim, before, size, after of an op along outer or inner."""
        whole = self.outer if self.dim == "outer" else inner
        sizes = [n for n in range(1, whole + 1) if whole % n == 0]
        size = self.rng.choice(sizes)
        after = self.rng.choice([n for n in range(1, whole // size + 1) if (whole // size) % n == 0] + [1] * 3)
        self.fields.update(dim=J.DIMS[self.dim], dim_size=size, dim_after=after)
        return whole // size // after, size, after

    def build(self, api):
        rng, axis = self.rng, self.axis
        inner = rng.choice([1, 3, 8, 40, 64, 70, 200, 264])
        getattr(self, "build_" + ("pointwise" if self.op in ("gelu", "gelu_tanh", "silu", "threshold") else self.op))(api, inner)
        index = torch.int32 if self.fields["index_dtype"] == native.I32 else torch.int64
        self.lengths = []
        for i, axis in enumerate(getattr(self, "axes", [axis])):
            if hasattr(self, "axes") and not self.ragged >> i & 1:
                self.lengths.append((None, None))
                continue
            self.memory[f"offsets{i}"] = Memory(api, torch.tensor(axis.starts, dtype=index))
            used = None
            if axis.used is not None:
                self.memory[f"used{i}"] = Memory(api, torch.tensor(axis.used, dtype=index))
                used = self.memory[f"used{i}"].at
            self.lengths.append((self.memory[f"offsets{i}"].at, used))
        self.memory["status_out"] = Memory(api, torch.full((1,), -1, dtype=torch.int32))
        self.pointers["status_out"] = self.memory["status_out"].at

    def finish(self, api, values, index, inner, count=None):
        count = axis_count = self.axis.total * self.outer * inner if count is None else count
        expected, live = self.scatter(values, index, axis_count)
        self.want(api, "dx", expected, live, self.wide, self.add)
        self.fields.update(inner=inner, dx_dtype=3 if self.wide else 0, accumulate=self.fields.get("accumulate", 0) | (1 if self.add else 0))

    def build_pointwise(self, api, inner):
        grad, g, index = self.nested(inner)
        x, values, _ = self.nested(inner)
        if self.op == "threshold":
            self.fields["threshold"] = self.rng.choice([0.0, 0.1, -0.5])
        self.give(api, "grad", grad)
        self.give(api, "x", x)
        results = []
        for a, b in zip(g, values):
            if self.op == "gelu":
                results.append(a * (torch.special.ndtr(b) + b * torch.exp(-b * b / 2) / math.sqrt(2 * math.pi)))
            elif self.op == "gelu_tanh":
                k = math.sqrt(2 / math.pi)
                t = torch.tanh(k * (b + 0.044715 * b ** 3))
                results.append(a * ((1 + t) / 2 + b / 2 * (1 - t * t) * k * (1 + 3 * 0.044715 * b * b)))
            elif self.op == "silu":
                t = torch.sigmoid(b)
                results.append(a * t * (1 + b * (1 - t)))
            else:
                limit = torch.tensor(self.fields["threshold"], dtype=torch.float32).double()
                results.append(torch.where(b <= limit, torch.zeros_like(a), a))
        self.finish(api, results, index, inner)

    def build_softmax(self, api, inner):
        self.dim = self.rng.choice(["inner", "inner", "ragged", "outer"])
        if self.dim == "inner":
            inner = self.rng.choice([inner, 1000, 2100, 4100, 9000] if self.axis.total * self.outer < 200 else [inner])
        grad, g, index = self.nested(inner)
        y, values, _ = self.nested(inner)
        log = self.op == "log_softmax"
        y = torch.where(y.isnan(), y, y - 3 if log else y.abs() * .1)
        values = [torch.as_tensor(y[at.reshape(-1)].view(at.shape).double()[:, :self.axis.live[b]]) for b, at in enumerate(index)]
        self.give(api, "grad", grad)
        self.give(api, "y", y)
        self.fields["dim"] = J.DIMS[self.dim]
        before, size, after = (1, 0, 1) if self.dim == "ragged" else self.dims(inner)
        results = []
        for a, b in zip(g, values):
            shape = a.shape
            if self.dim == "ragged":
                s = (a if log else a * b).sum(1, keepdim=True)
            else:
                view = (before, size, after, shape[1], shape[2]) if self.dim == "outer" else (shape[0], shape[1], before, size, after)
                a, b = a.reshape(view), b.reshape(view)
                s = (a if log else a * b).sum(1 if self.dim == "outer" else 3, keepdim=True)
            results.append((a - b.exp() * s if log else b * (a - s)).reshape(shape))
        self.finish(api, results, index, inner)

    build_log_softmax = build_softmax

    def build_layer_norm(self, api, inner):
        rms = self.op == "rms_norm"
        if self.axis.total * self.outer < 200:
            inner = self.rng.choice([inner, 600, 3000, 9000])
        grad, g, index = self.nested(inner)
        x, values, _ = self.nested(inner)
        size = self.rng.choice([n for n in range(1, inner + 1) if inner % n == 0] + [inner] * 3)
        before = inner // size
        gamma = self.rng.random() < .7
        self.fields.update(dim_size=size, dim=J.DIMS[self.rng.choice([None, "inner"])], flags=self.fields.get("flags", 0) | (native.JAGGED_HAS_GAMMA if gamma else 0))
        weight = randoms(size, self.type, self.generator)
        self.give(api, "grad", grad)
        self.give(api, "x", x)
        if gamma:
            self.give(api, "weight", weight)
        lines = components_of(self.axis, self.storage, self.outer, before)
        mean = torch.full((self.axis.total * self.outer * before,), math.nan)
        rstd = mean.clone()
        results, dgamma, dbeta = [], torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        w = weight.double() if gamma else torch.ones(size, dtype=torch.float64)
        for b, (a, v) in enumerate(zip(g, values)):
            shape = a.shape
            a, v = a.reshape(shape[0], shape[1], before, size), v.reshape(shape[0], shape[1], before, size)
            m = torch.zeros_like(v[..., 0]).float() if rms else v.mean(-1).float()
            s = (1 / ((v * v).mean(-1) if rms else v.var(-1, unbiased=False)).add(1e-5).sqrt()).float()
            mean[lines[b][:, :self.axis.live[b]].reshape(-1)] = m.reshape(-1)
            rstd[lines[b][:, :self.axis.live[b]].reshape(-1)] = s.reshape(-1)
            m, s = m.double()[..., None], s.double()[..., None]
            h, weighted = (v - m) * s, a * w
            results.append((s * (weighted - (0 if rms else weighted.mean(-1, keepdim=True)) - h * (weighted * h).mean(-1, keepdim=True))).reshape(shape))
            dgamma += (a * h).sum((0, 1, 2))
            dbeta += a.sum((0, 1, 2))
        if not rms:
            self.give(api, "mean", mean)
        self.give(api, "rstd", rstd)
        outputs = self.rng.choice([1, 13, 13, 12, 8, 5, 4]) if gamma else self.rng.choice([1, 1, 9, 13])
        outputs = {12: 4, 8: 4, 9: 1, 13: 5}.get(outputs, outputs) if rms else outputs
        self.fields["outputs"] = outputs
        everywhere = torch.ones(size, dtype=torch.bool)
        for bit, name, value in ((4, "dweight", dgamma), (8, "dbias", dbeta)):
            if outputs & bit:
                wide = self.dtype == 3 or self.rng.random() < .5
                add = wide and self.rng.random() < .3
                self.want(api, name, value, everywhere, wide, add)
                self.fields[name + "_dtype"] = 3 if wide else 0
                self.fields["accumulate"] = self.fields.get("accumulate", 0) | (bit if add else 0)
        if outputs & 1:
            self.finish(api, results, index, inner)
        else:
            self.fields["inner"] = inner

    build_rms_norm = build_layer_norm

    def build_linear(self, api, inner):
        inner = self.rng.choice([inner, 130])
        features = self.rng.choice([1, 16, 40, 136])
        if self.full:
            self.fields["flags"] = native.JAGGED_FULL
            inner, features = 392, -(-10 ** 8 // (392 * max(self.axis.total * self.outer, 1)))
        grad, g, _ = self.nested(features)
        x, values, index = self.nested(inner)
        weight = randoms(features * inner, self.type, self.generator)
        outputs = self.rng.choice([1, 4, 8, 13, 13])
        self.fields.update(outputs=outputs, inner=inner, out_features=features)
        self.give(api, "grad", grad)
        if outputs & 4:
            self.give(api, "x", x)
        if outputs & 1:
            self.give(api, "weight", weight)
        w = weight.double().view(features, inner)
        zero = torch.zeros(features, inner, dtype=torch.float64)
        sums = {"dweight": (4, sum((torch.einsum("orn,ork->nk", a, v) for a, v in zip(g, values)), zero).reshape(-1)),
                "dbias": (8, sum((a.sum((0, 1)) for a in g), torch.zeros(features, dtype=torch.float64)))}
        self.add_sums(api, outputs, sums)
        if outputs & 1:
            self.finish(api, [a @ w for a in g], index, inner)

    def add_sums(self, api, outputs, sums):
        for name, (bit, value) in sums.items():
            if outputs & bit:
                wide = self.dtype == 3 or self.rng.random() < .5
                add = wide and self.rng.random() < .3
                self.want(api, name, value, torch.ones(value.numel(), dtype=torch.bool), wide, add)
                self.fields[name + "_dtype"] = 3 if wide else 0
                self.fields["accumulate"] = self.fields.get("accumulate", 0) | (bit if add else 0)

    def build_matmul(self, api, inner):
        rng, components = self.rng, self.components
        ragged = rng.choice([1, 1, 2, 4, 4, 2, 7, 3, 5, 6, 0])
        used = self.axis.used is not None and ragged
        axes = []
        for i in range(3):
            if ragged >> i & 1:
                axes.append(Axis(rng, components, rng.choice([5, 40, 150, 700 if i == 0 and self.outer == 1 else 40]), used))
            else:
                extent = rng.choice([0, 1, 8, 24, 70, 136]) if rng.random() < .95 else 0
                fixed = Axis(rng, 0, 1, False)
                fixed.lengths, fixed.live, fixed.size, fixed.total = [extent] * components, [extent] * components, extent, 0
                axes.append(fixed)
        self.axes, flags = axes, 0
        if used:
            flags |= native.JAGGED_HAS_USED
        outputs = rng.choice([1, 2, 3, 3])
        fields = dict(self.fields, outputs=outputs, ragged_axes=ragged)
        tensors = {}
        for name, rows, cols, transposed, bases, storage in (("x", 0, 1, native.JAGGED_X_TRANSPOSED, native.JAGGED_X_BASES, "storage"),
                                                             ("other", 1, 2, native.JAGGED_OTHER_TRANSPOSED, native.JAGGED_OTHER_BASES, "other_storage"),
                                                             ("grad", 0, 2, native.JAGGED_GRAD_TRANSPOSED, native.JAGGED_GRAD_BASES, "grad_storage")):
            both = ragged >> rows & 1 and ragged >> cols & 1
            turned = rng.random() < .4
            based = both or rng.random() < .2
            spread = not based and (ragged >> rows & 1 or ragged >> cols & 1) and rng.random() < .5
            flags |= (transposed if turned else 0) | (bases if based else 0)
            fields[storage] = int(bool(spread))
            index, first = [], rng.choice([0, 7])
            starts = []
            for b in range(components):
                r, c = axes[rows].lengths[b], axes[cols].lengths[b]
                o, i, j = torch.meshgrid(torch.arange(self.outer), torch.arange(r), torch.arange(c), indexing="ij")
                stored_r = axes[rows].total if spread and ragged >> rows & 1 else r
                stored_c = axes[cols].total if spread and ragged >> cols & 1 else c
                inside = (j * stored_r + i) if turned else (i * stored_c + j)
                if based:
                    base = first
                    starts.append(first)
                    first += self.outer * r * c + rng.choice([0, 3])
                elif not (ragged >> rows & 1 or ragged >> cols & 1):
                    base = b * self.outer * r * c
                elif spread:
                    at = axes[rows].starts[b] if ragged >> rows & 1 else axes[cols].starts[b]
                    base = at * ((1 if turned else stored_c) if ragged >> rows & 1 else (stored_r if turned else 1))
                else:
                    at, left = (axes[rows].starts[b], c) if ragged >> rows & 1 else (axes[cols].starts[b], r)
                    base = at * left * self.outer
                index.append(base + o * stored_r * stored_c + inside)
            if based:
                count = first
                fields[name + "_elements"] = count
                self.memory[name + "_bases"] = Memory(api, torch.tensor(starts, dtype=torch.int64))
                self.pointers[name + "_bases"] = self.memory[name + "_bases"].at
            elif not (ragged >> rows & 1 or ragged >> cols & 1):
                count = components * self.outer * axes[rows].size * axes[cols].size
            else:
                count = self.outer * (axes[rows].total if ragged >> rows & 1 else axes[rows].size) * (axes[cols].total if ragged >> cols & 1 else axes[cols].size)
            buffer = torch.full((count,), math.nan).to(self.type)
            values = []
            for b, at in enumerate(index):
                fill = randoms(at.numel(), self.type, self.generator).view(at.shape)
                fill[:, axes[rows].live[b]:] = math.nan
                fill[:, :, axes[cols].live[b]:] = math.nan
                buffer[at.reshape(-1)] = fill.reshape(-1)
                values.append(fill.double()[:, :axes[rows].live[b], :axes[cols].live[b]])
            tensors[name] = (buffer, values, index, count)
        needed = {"grad"} | ({"other"} if outputs & 1 else set()) | ({"x"} if outputs & 2 else set())
        for name in needed:
            self.give(api, name, tensors[name][0])
        products = {"dx": (1, "x", lambda a, b, g: g @ b.transpose(1, 2)), "dother": (2, "other", lambda a, b, g: a.transpose(1, 2) @ g)}
        accumulate = 0
        for name, (bit, like, f) in products.items():
            if not outputs & bit:
                continue
            _, values, index, count = tensors[like]
            expected, live = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.bool)
            for b, at in enumerate(index):
                full = torch.zeros(at.shape, dtype=torch.float64)
                full[:, :values[b].shape[1], :values[b].shape[2]] = f(tensors["x"][1][b], tensors["other"][1][b], tensors["grad"][1][b])
                expected[at.reshape(-1)] = full.reshape(-1)
                live[at.reshape(-1)] = True
            wide = self.dtype == 3 or rng.random() < .4
            add = wide and rng.random() < .3
            self.want(api, name, expected, live, wide, add)
            fields[name + "_dtype"] = 3 if wide else 0
            accumulate |= bit if add else 0
        self.fields = dict(fields, flags=flags, accumulate=accumulate)
        self.ragged = ragged

    def moved(self, inner, select):
        """Gradient without the dim, its buffer, and the result of each component."""
        axis, index = self.axis, components_of(self.axis, self.storage, self.outer, inner)
        if self.dim == "component":
            b = self.fields["index"] % max(self.components, 1)
            grad = randoms(self.outer * axis.live[b] * inner, self.type, self.generator)
            results = [torch.zeros(self.outer, axis.live[k], inner, dtype=torch.float64) for k in range(self.components)]
            results[b] = grad.double().view(results[b].shape)
            return grad, results, index
        if self.dim == "ragged":
            grad = randoms(self.components * self.outer * inner, self.type, self.generator)
            each = grad.double().view(self.components, self.outer, 1, inner)
            results = []
            for b in range(self.components):
                full = each[b].expand(self.outer, axis.live[b], inner).clone()
                if select is not None:
                    keep = select if select >= 0 else select + axis.live[b]
                    full *= (torch.arange(axis.live[b]) == keep)[None, :, None]
                results.append(full)
            return grad, results, index
        before, size, after = self.dims(inner)
        if select is not None:
            select = self.fields["index"] = self.rng.randint(-size, size - 1)
        outer, left = (self.outer // size, inner) if self.dim == "outer" else (self.outer, inner // size)
        grad, g, _ = self.nested(left, outer)
        results = []
        for a in g:
            rows = a.shape[1]
            view = (before, 1, after, rows, inner) if self.dim == "outer" else (self.outer, rows, before, 1, after)
            at = 1 if self.dim == "outer" else 3
            full = a.reshape(view).expand(*view[:at], size, *view[at + 1:]).clone()
            if select is not None:
                keep = torch.zeros(size, dtype=torch.float64)
                keep[select] = 1
                full *= keep.view([size if k == at else 1 for k in range(5)])
            results.append(full.reshape(self.outer, rows, inner))
        return grad, results, index

    def build_sum(self, api, inner):
        self.dim = self.rng.choice(["inner", "inner", "ragged", "outer"])
        self.fields["dim"] = J.DIMS[self.dim]
        grad, results, index = self.moved(inner, None)
        self.give(api, "grad", grad)
        self.finish(api, results, index, inner)

    def build_select(self, api, inner):
        self.dim = self.rng.choice(["inner", "ragged", "outer", "component" if self.components else "inner"])
        self.fields["dim"] = J.DIMS[self.dim]
        self.fields["index"] = self.rng.randint(-1, 1) if self.dim == "ragged" else self.rng.randint(-self.components, max(self.components - 1, 0))
        if self.dim == "ragged":
            index = self.fields["index"]
            self.status = 0x100 if any(not (-n <= index < n) for n in self.axis.live) else 0
        grad, results, index = self.moved(inner, self.fields["index"])
        self.give(api, "grad", grad)
        self.finish(api, results, index, inner)

    def build_reshape(self, api, inner):
        shapes = [((2, -1, 6), (3, -1, 4)), ((-1, 8), (8, -1)), ((-1, 16), (-1, 4, 4)), ((4, -1, 1), (4, -1)), ((2, -1, 40), (2, -1, 40)), ((1, -1, 64), (4, -1, 16))]
        shape, other = self.rng.choice(shapes)
        outer, inner = math.prod(shape[:shape.index(-1)]), math.prod(shape[shape.index(-1) + 1:])
        grad_outer, grad_inner = math.prod(other[:other.index(-1)]), math.prod(other[other.index(-1) + 1:])
        grad_storage = self.rng.choice(["components", "jagged"])
        self.outer = grad_outer
        own, self.storage = self.storage, grad_storage
        grad, g, _ = self.nested(grad_inner)
        self.storage, self.outer = own, outer
        self.give(api, "grad", grad)
        index = components_of(self.axis, self.storage, outer, inner)
        results = [a.reshape(outer, self.axis.live[b], inner) for b, a in enumerate(g)]
        self.finish(api, results, index, inner)
        del self.fields["outer"], self.fields["inner"]
        self.fields.update(shape=shape, shape_rank=len(shape), grad_shape=other, grad_rank=len(other), grad_storage=J.STORAGE[grad_storage])

    def build_to_padded(self, api, inner):
        padded = self.rng.choice([self.axis.size, max(self.axis.size // 2, 0), self.axis.size + 9])
        grad = randoms(self.components * self.outer * padded * inner, self.type, self.generator)
        dense = grad.double().view(self.components, self.outer, padded, inner)
        results = []
        for b in range(self.components):
            full = torch.zeros(self.outer, self.axis.live[b], inner, dtype=torch.float64)
            n = min(padded, self.axis.live[b])
            full[:, :n] = dense[b][:, :n]
            results.append(full)
        self.fields["padded"] = padded
        self.give(api, "grad", grad)
        self.finish(api, results, components_of(self.axis, self.storage, self.outer, inner), inner)

    def build_from_padded(self, api, inner):
        padded = self.rng.choice([self.axis.size, max(self.axis.size // 2, 0), self.axis.size + 9])
        grad, g, _ = self.nested(inner)
        dense = torch.zeros(self.components, self.outer, padded, inner, dtype=torch.float64)
        for b in range(self.components):
            n = min(padded, self.axis.live[b])
            dense[b][:, :n] = g[b][:, :n]
        self.fields.update(padded=padded, inner=inner, dx_dtype=3 if self.wide else 0, accumulate=1 if self.add else 0)
        self.give(api, "grad", grad)
        dense = dense.reshape(-1)
        self.want(api, "dx", dense, torch.ones_like(dense, dtype=torch.bool), self.wide, self.add)

    def run(self, api):
        self.status = 0
        self.build(api)
        plan = J.Plan(api, self.op, self.dtype, [(a.size, a.total) for a in getattr(self, "axes", [self.axis])],
                            **self.fields)
        self.text = plan.text()
        workspace = Memory(api, torch.full((plan.size + 512,), 0x7F, dtype=torch.uint8))
        at = (workspace.at + 255) // 256 * 256
        args = plan.args(self.lengths, **self.pointers)
        plan.run(args, at)
        wrong = []
        for name, memory in self.memory.items():
            back = memory.read()
            if back is None:
                wrong.append(f"{name}: a guard was overwritten")
            elif name == "status_out":
                if back.item() != self.status:
                    wrong.append(f"status {back.item():#x}, not {self.status:#x}")
            elif name in self.outputs:
                wrong += self.compare(name, back)
            elif not torch.equal(back.view(torch.uint8), memory.host.view(-1).view(torch.uint8)):
                wrong.append(f"{name}: an input was overwritten")
            memory.free()
        workspace.free()
        return wrong

    def compare(self, name, back):
        before, expected, live, dtype = self.outputs[name]
        raw = torch.int32 if back.dtype == torch.float32 else torch.int16
        if not torch.equal(back[~live].view(raw), before[~live].view(raw)):
            return [f"{name}: something outside the components was written"]
        if not live.any():
            return []
        error = (back[live].double() - expected[live]).abs()
        most = expected[live].abs().max().item()
        limit = (ULP[dtype] + 64 * 2.0 ** -24 + 2e-7 * math.sqrt(sum(self.axis.live) + 1)) * (most + (1e-2 if self.op in ("matmul", "linear") else 1e-3))
        if not error.max() <= limit:
            k = error.nan_to_num(nan=math.inf).argmax().item()
            return [f"{name}: element {torch.nonzero(live).view(-1)[k].item()} is {back[live][k].item()}, not {expected[live][k].item()}; limit {limit:.3g}"]
        return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="cuda", choices=("cuda", "hip", "cpu"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    api = open_or_exit(given.backend)
    failed = 0
    for seed in range(given.seed, given.seed + given.count):
        case = Case(seed, given.only)
        try:
            wrong = case.run(api)
        except native.InvalidError as error:
            wrong = [] if case.status and api.arch == "cpu" else [str(error)]  # host data is refused, not reported
        except RuntimeError as error:
            wrong = [str(error)]
        if wrong or given.verbose:
            shape = {k: v for k, v in case.fields.items() if v}
            print(f"seed {seed}: {case.op} dtype {case.dtype} total {case.axis.total} lengths {case.axis.lengths[:8]} lead {case.lead} {shape}"
                  f" {getattr(case, 'text', '').split('variant: ')[-1].split(chr(10))[0]}: {'; '.join(wrong) or 'ok'}", flush=True)
        failed += bool(wrong)
        if failed >= 20:
            break
    print(f"{given.count} problems on {api.arch}, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
