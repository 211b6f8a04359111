# SPDX-License-Identifier: MIT
"""What somebody does who comes from another library: each slip is refused, by a text that names it and says what to
write."""
from __future__ import annotations

import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")


def arrays():
    q = np.random.default_rng(5).standard_normal((1, 2, 7, 8)).astype("f")
    return (q, q, q, *sternway.attn_fwd(q, q, q))


@pytest.mark.parametrize("options, error, match", [
    ({"window": 5}, sternway.InvalidError, r"window is 5; it is a pair"),
    ({"window": (1, 2, 3)}, sternway.InvalidError, "it is a pair"),
    ({"window": (-1, 0)}, sternway.InvalidError, r"window is \(-1, 0\).*None for no bound"),
    ({"mask": np.ones((7, 7), bool)}, sternway.InvalidError, "mask is an array.*bias="),
    ({"mask": True}, sternway.InvalidError, "mask is True; one of"),
    ({"causal": True}, TypeError, "no argument 'causal'.*mask=\"causal\""),
    ({"is_causal": True}, TypeError, "'is_causal'.*\"causal_top_left\""),
    ({"scale": "a"}, TypeError, "scale is .*str"),
    ({"cpu_threads": "two"}, TypeError, "cpu_threads is .*str"),
])
def test_options(options, error, match):
    q, k, v, *_ = arrays()
    with pytest.raises(error, match=match) as caught:
        sternway.attn_fwd(q, k, v, **options)
    assert len(str(caught.value)) < 300


def test_integers():
    q = np.ones((1, 1, 2, 2), np.int64)
    with pytest.raises(sternway.UnsupportedError, match="q is i64; f16, bf16, f32"):
        sternway.attn_fwd(q, q, q)


def test_packed_sequences_need_their_longest():
    q, starts = np.ones((5, 2, 4), "f"), np.array([0, 2, 5], np.int32)
    with pytest.raises(sternway.InvalidError, match="max_seq_q is required"):
        sternway.attn_fwd(q, q, q, layout="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts)
    with pytest.raises(sternway.InvalidError, match="max_seq_kv is required"):
        sternway.attn_fwd(q, q, q, layout="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seq_q=3)


def test_what_is_added_to_has_to_be_given():
    """New memory holds anything: what would be added to it is no gradient."""
    q, k, v, out, lse = arrays()
    with pytest.raises(sternway.InvalidError, match="accumulate names dk, but no array is given"):
        sternway.attn_bwd(q, q, k, v, out, lse, outputs=("dq", "dk"), dq=np.zeros_like(q), accumulate=("dq", "dk"))
    dq = np.ones_like(q)
    added = sternway.attn_bwd(q, q, k, v, out, lse, outputs=("dq", "dk"), dq=dq, accumulate="dq")
    plain = sternway.attn_bwd(q, q, k, v, out, lse)
    np.testing.assert_allclose(added.dq, plain.dq + 1, atol=1e-6)
    np.testing.assert_allclose(added.dk, plain.dk, atol=1e-6)
    x, weight, offsets = np.ones((6, 3), "f"), np.ones((2, 3), "f"), np.array([0, 2, 6])
    for call in (lambda: sternway.jagged.silu_backward(x, x, offsets, accumulate="dx"),
                 lambda: sternway.jagged.linear_backward(np.ones((6, 2), "f"), x, weight, offsets,
                                                         accumulate=("dweight",))):
        with pytest.raises(sternway.InvalidError, match="accumulate names d(x|weight), but no array is given"):
            call()
    sternway.jagged.linear_backward(np.ones((6, 2), "f"), x, weight, offsets, dweight=np.zeros_like(weight),
                                    outputs=("dx",), accumulate=("dweight",))


def test_explain():
    q = arrays()[0]
    with pytest.raises(sternway.InvalidError, match="python -m sternway explain"):
        sternway.explain("attn_bwd:bf16:b4h32k8s4096d128:causal_br")
    with pytest.raises(sternway.InvalidError, match="three arrays"):
        sternway.explain(q)
    with pytest.raises(TypeError, match="no argument 'heads'"):
        sternway.explain(heads=4, seq_q=8, head_dim=8)
    sizes = {"heads_q": 4, "seq_q": 8, "head_dim": 8, "dtype": "f32", "backend": "cpu"}
    assert "\nproblem: attn_bwd:f32:b1h4s8d8" in sternway.explain(**sizes)
    assert "\nproblem: attn_fwd:f32:b1h4s8d8" in sternway.explain(**sizes, forward=True)


def test_names():
    """What completion shows is the interface, not what the module imports; the help of attn_bwd has every keyword."""
    shown = set(dir(sternway))
    assert {"attn_bwd", "torch", "flash_attn", "__version__"} <= shown
    assert not shown & {"Callable", "ModuleType", "annotations", "importlib", "report"}
    from sternway._options import Options
    for function in (sternway.attn_bwd, sternway.attn_fwd):
        missing = [name for name in Options.__annotations__ if name not in function.__doc__]
        assert not missing


def test_import_prints_nothing_and_takes_no_numpy():
    code = "import sys, sternway; assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True,
                          env={"PYTHONPATH": ":".join(path for path in sys.path if path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_of_nested_operations_has_their_keywords():
    from sternway._jagged_types import Common
    for name in ("silu_backward", "matmul_backward", "reshape_backward"):
        assert not [keyword for keyword in Common.__annotations__
                    if keyword not in getattr(sternway.jagged, name).__doc__]


def test_nested_operations():
    x, offsets = np.ones((6, 3), "f"), np.array([0, 2, 6])
    with pytest.raises(TypeError, match="no argument 'storag'; .*storage"):
        sternway.jagged.silu_backward(x, x, offsets, storag="jagged")
    with pytest.raises(TypeError, match="no argument 'acumulate'"):
        sternway.jagged.linear_backward(np.ones((6, 2), "f"), x, np.ones((2, 3), "f"), offsets, acumulate="dx")
    with pytest.raises(sternway.InvalidError, match="offsets is None"):
        sternway.jagged.silu_backward(x, x, None)
    with pytest.raises(TypeError, match="no argument 'axs'"):
        sternway.explain_jagged("silu", dtype="f32", components=3, axs=((10, 10),))


def test_names_of_types():
    assert "f32" in sternway.explain(seq_q=3, head_dim=8, dtype="float32", backend="cpu")
    assert "f32" in sternway.explain_jagged("silu", dtype="float32", components=3, axis=((9, 9),), inner=2)
