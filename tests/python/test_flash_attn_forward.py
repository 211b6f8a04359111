# SPDX-License-Identifier: MIT
"""The way through PyTorch's flash operator, which only GPUs have: a stand-in on the CPU plays its part, checks what
it is handed and answers as the versions of PyTorch do."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

import flash_attn_reference as reference  # noqa: E402

import sternway.flash_attn as flash_attn  # noqa: E402
from sternway import _native  # noqa: E402
from sternway.flash_attn import _calls, _forward, _operators  # noqa: E402
from sternway.torch import _bridge  # noqa: E402

F64 = torch.float64
STARTS_Q, STARTS_K = [0, 5, 5, 18, 20], [0, 7, 10, 29, 29]  # the longest is whole, one has no keys


class StandIn:
    """torch.ops.aten._flash_attention_forward on the CPU. `old` answers as before PyTorch 2.7: seed and offset apart,
    the LSE of packs [B, H, longest]."""

    def __init__(self, old: bool) -> None:
        self.old, self.calls = old, []

    def __call__(self, q, k, v, cu_q, cu_k, max_q, max_k, dropout_p, causal, debug_mask, *, scale=None,
                 window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None,
                 num_splits=None):
        for tensor in (q, k, v):
            assert tensor.shape[-1] % 8 == 0 and tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0
            assert all(stride % 8 == 0 for stride, size in zip(tensor.stride()[:-1], tensor.shape) if size > 1)
        assert scale is not None and not (debug_mask and dropout_p == 0)
        self.calls.append((q, cu_q, scale))
        state = torch.tensor([1234567, 42], dtype=torch.int64)
        settings = dict(scale=scale, causal=causal, dropout_p=dropout_p,
                        window=tuple(-1 if size is None else size for size in (window_size_left, window_size_right)))
        slopes = None if alibi_slopes is None else alibi_slopes.to(F64)
        batch = q.shape[0] if cu_q is None else cu_q.numel() - 1
        kept = None
        if dropout_p > 0:
            kept = torch.empty(batch, q.shape[-2], max_q, max_k, dtype=torch.uint8)
            packs = {} if cu_q is None else dict(cu_seqlens_q=cu_q, cu_seqlens_kv=cu_k, max_seq_q=max_q,
                                                 max_seq_kv=max_k)
            _bridge.dropout_mask(_native.BSHD if cu_q is None else _native.THD, q=q, k=k, mask_out=kept,
                                 dropout_p=dropout_p, dropout_map=_native.DROPOUT_FLASH2, dropout_seed=1234567,
                                 dropout_offset=42, **packs)
        wide = [tensor.to(F64) for tensor in (q, k, v)]
        if cu_q is None:
            out, lse, _ = reference.dense(*wide, slopes, kept, **settings)
        else:
            starts = cu_q.tolist(), cu_k.tolist()
            out, lse, _ = reference.packed(*wide, *starts, slopes, kept, max_keys=max_k, **settings)
            if self.old:
                rows = [lse[:, a:b] for a, b in zip(starts[0], starts[0][1:])]
                lse = torch.stack([torch.nn.functional.pad(row, (0, max_q - row.shape[1]), value=7.0) for row in rows])
        probs = q.new_zeros(batch, q.shape[-2], 128, 128) if debug_mask else q.new_empty(0)
        random = (state[0].clone(), state[1].clone()) if self.old else (state.view(torch.uint64), state[0].clone())
        return torch.empty_like(q).copy_(out), lse.to(torch.float32), *random, probs


@pytest.fixture(params=[False, True], ids=["new", "old"])
def stand_in(request, monkeypatch):
    one = StandIn(request.param)
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", one, "CPU")
    for module in (_calls, _operators):
        monkeypatch.setattr(module, "torch_takes", lambda *_: True)
    yield one
    library._destroy()


def close(got, expected, bound=5e-6):
    got, expected = got.detach().to(F64), expected.detach()
    finite = torch.isfinite(expected)
    assert torch.equal(got[~finite], expected[~finite])
    error = (got[finite] - expected[finite]).norm() / expected[finite].norm()
    assert error < bound, f"relative error {error:.1e}"


@pytest.mark.parametrize("head_dim", [5, 8, 19])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("packed,window", [(False, (6, -1)), (True, (6, -1)), (False, (4, 3)), (True, (-1, 2))])
def test_forward_and_its_backward(stand_in, packed, window, dropout_p, head_dim):
    torch.manual_seed(1)
    shapes = ((20, 4, head_dim), (29, 2, 2, head_dim)) if packed else ((2, 11, 4, head_dim), (2, 17, 2, 2, head_dim))
    q, kv = (torch.randn(*shape, requires_grad=True) for shape in shapes)
    others = [tensor.detach().to(F64).requires_grad_() for tensor in (q, kv)]
    slopes = torch.rand(4)
    lengths = (*(torch.tensor(starts, dtype=torch.int32) for starts in (STARTS_Q, STARTS_K)), 13, 19) if packed else ()
    function = flash_attn.flash_attn_varlen_kvpacked_func if packed else flash_attn.flash_attn_kvpacked_func
    out, lse, probs = function(q, kv, *lengths, dropout_p, causal=window[1] < 0, window_size=window,
                               alibi_slopes=slopes, return_attn_probs=True)
    seen, _, scale = stand_in.calls[0]
    assert seen.shape[-1] == (head_dim + 7) // 8 * 8 and scale == head_dim ** -0.5
    assert probs.numel() == (0 if dropout_p == 0 else probs.shape[0] * 4 * 128 * 128)
    settings = dict(causal=window[1] < 0, window=window, dropout_p=dropout_p)
    heads = others[0], *others[1].unbind(-3)
    kept = None
    if dropout_p:
        batch, rows, keys = (4, 13, 19) if packed else (2, 11, 17)
        kept = torch.empty(batch, 4, rows, keys, dtype=torch.uint8)
        packs = dict(zip(("cu_seqlens_q", "cu_seqlens_kv", "max_seq_q", "max_seq_kv"), lengths))
        _bridge.dropout_mask(_native.THD if packed else _native.BSHD, q=q.detach(), k=kv.detach().select(-3, 0),
                             mask_out=kept, dropout_p=dropout_p, dropout_map=_native.DROPOUT_FLASH2,
                             dropout_seed=1234567, dropout_offset=42, **packs)
    if packed:
        expected = reference.packed(*heads, STARTS_Q, STARTS_K, slopes.to(F64), kept, max_keys=19, **settings)
    else:
        expected = reference.dense(*heads, slopes.to(F64), kept, **settings)
    close(out, expected[0])
    close(lse, expected[1])
    dout = torch.randn_like(out)
    for got, other in zip(torch.autograd.grad(out, (q, kv), dout), torch.autograd.grad(expected[0], others, dout)):
        close(got, other)


def test_rows_off_their_vectors_are_copied(stand_in):
    torch.manual_seed(2)
    wide = torch.randn(2, 9, 2, 17)
    q, k, v = wide[..., 1:9], wide[..., 8:16], torch.randn(2, 9, 1, 8).expand(2, 9, 2, 8)
    out = flash_attn.flash_attn_func(q, k, v)
    close(out, reference.dense(q.to(F64), k.to(F64), v.to(F64))[0])
    off = torch.randn(2, 9, 2, 24)[..., 1:9]  # each row 4 bytes off
    close(flash_attn.flash_attn_func(off, off, off), reference.dense(*[off.to(F64)] * 3)[0])


@pytest.mark.parametrize("head_dim", [5, 8])
def test_fake_results_have_the_strides_of_the_real_ones(stand_in, head_dim):
    tensors = torch.randn(2, 2, 11, head_dim).transpose(1, 2), *torch.randn(2, 2, 11, 2, head_dim).unbind(0)
    qkv = torch.randn(2, 11, 3, 2, head_dim)
    for inputs in (tensors, (qkv, None, None)):
        arguments = (*inputs, None, None, None, 11, 11, 0.3, None, True, -1, -1, 0.0, False, True)
        torch.library.opcheck(_operators.attention, arguments, test_utils=("test_schema", "test_faketensor"))
        real, fake = _operators._attention(*arguments), _operators._attention_fake(*arguments)
        assert [(t.shape, t.stride(), t.dtype) for t in real[:2]] == [(t.shape, t.stride(), t.dtype) for t in fake[:2]]
        assert [(t.shape, t.dtype) for t in real[2:]] == [(t.shape, t.dtype) for t in fake[2:]]


def test_what_pytorch_takes():
    """On the CPU nothing; f32, softcap, unequal head dims, empty problems nowhere."""
    q = torch.empty(2, 9, 2, 8, dtype=torch.float16, device="meta")

    class OnGpu:
        """A tensor's description with a GPU's name on it."""
        def __init__(self, tensor):
            self.tensor, self.device = tensor, torch.device("cuda", 0)

        def __getattr__(self, name):
            return getattr(self.tensor, name)
    usual = (None, None, None, 9, 0.0, False, -1, -1)
    takes = _forward.torch_takes
    assert not takes(q, q, q, *usual, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_forward, "_device_has_flash", lambda device: True)
        one, longer = OnGpu(q), OnGpu(q.new_empty(2, 12, 2, 8))
        assert takes(one, one, one, *usual, 0.0)
        assert not takes(one, one, one, *usual, 1.0)
        assert not takes(OnGpu(q.float()), one, one, *usual, 0.0)
        assert not takes(one, one, OnGpu(q[..., :4]), *usual, 0.0)
        assert not takes(one, OnGpu(q[:, :0]), OnGpu(q[:, :0]), *usual, 0.0)
        patch.setattr(torch.version, "hip", "6.4")
        assert takes(one, one, one, None, None, None, 9, 0.0, True, -1, -1, 0.0)
        assert takes(one, longer, longer, None, None, None, 12, 0.0, False, -1, -1, 0.0)
        assert not takes(one, longer, longer, None, None, None, 12, 0.0, True, -1, -1, 0.0)
        assert not takes(one, one, one, None, None, None, 9, 0.1, False, -1, -1, 0.0)
        assert not takes(one, one, one, None, None, None, 9, 0.0, False, 3, -1, 0.0)
