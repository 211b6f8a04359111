# SPDX-License-Identifier: MIT
"""The three dropout maps of Sternway in numpy: which elements of the attention matrix a seed keeps.

Used by attention_reference.py. Written from the maps' definitions: `philox` is Sternway's own, `mem_eff` that of
PyTorch's memory-efficient kernels, `flash2` that of FlashAttention 2 as PyTorch builds it. make_dropout_maps.py
checks the last two against masks made on a GPU; Philox itself is checked against Random123's known answers.
"""
import numpy as np

LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)


def philox4x32(counter, key, rounds):
    """Philox4x32: counter is four arrays of 32-bit words (broadcast together), key two numbers; four arrays out."""
    c = [np.asarray(word, dtype=np.uint64) & LOW for word in np.broadcast_arrays(*counter)]
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(rounds):
        product0 = c[0] * np.uint64(0xD2511F53)
        product1 = c[2] * np.uint64(0xCD9E8D57)
        c = [(product1 >> WORD) ^ c[1] ^ k0, product1 & LOW, (product0 >> WORD) ^ c[3] ^ k1, product0 & LOW]
        k0 = (k0 + np.uint64(0x9E3779B9)) & LOW
        k1 = (k1 + np.uint64(0xBB67AE85)) & LOW
    return [word.astype(np.uint32) for word in c]


def check_known_answers():
    """Random123's published vectors for philox4x32, 7 and 10 rounds (counter, key, output)."""
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    answers = {
        (10, 0): "6627e8d5 e169c58d bc57ac4c 9b00dbd8", (7, 0): "5f6fb709 0d893f64 4f121f81 4f730a48",
        (10, 1): "408f276d 41c83b0e a20bc7c6 6d5451fd", (7, 1): "5207ddc2 45165e59 4d8ee751 8c52f662",
        (10, 2): "d16cfe09 94fdcceb 5001e420 24126ea1", (7, 2): "4dfccaba 190a87f0 c47362ba b6b5242a",
    }
    for (rounds, which), expected in answers.items():
        words = [[0] * 6, [0xFFFFFFFF] * 6, pi][which]
        got = " ".join(f"{int(word):08x}" for word in philox4x32(words[:4], words[4:], rounds))
        assert got == expected, (rounds, words, got)


def keep_philox(p, seed, offset, batch_head, i, j):
    """Sternway's map. i, j: global positions; batch_head: b * heads_total + h, all global."""
    i, j = np.asarray(i)[:, None], np.asarray(j)[None, :]
    key = (seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32))
    words = np.stack(philox4x32((i // 4, j, batch_head, offset & 0xFFFFFFFF), key, 10))
    draw = np.take_along_axis(words, np.broadcast_to(i % 4, words.shape[1:])[None], 0)[0]
    return draw.astype(np.uint64) >= np.uint64(int(np.floor(p * 2.0 ** 32)))


def keep_mem_eff(p, seed, offset, base, i, j, row_stride):
    """PyTorch's memory-efficient map. base: (b*H + h)*Sq*Sk; row_stride: the number of keys of the sequence.

    For packed sequences the base is 0 for every sequence and head, because PyTorch's forward holds the maximal number
    of keys to be 0 there (its issue 115590). Its backward multiplies by the true one: the two draw different masks.
    The uniform number and the comparison are float32, as in the kernel.
    """
    n = np.uint64(offset + base) + np.asarray(i, dtype=np.uint64)[:, None] * np.uint64(row_stride) \
        + np.asarray(j, dtype=np.uint64)[None, :]
    block = n >> np.uint64(2)
    words = np.stack(philox4x32((block & LOW, block >> WORD, 0, 0), (seed & 0xFFFFFFFF, seed >> 32), 10))
    draw = np.take_along_axis(words, (n & np.uint64(3)).astype(np.int64)[None], 0)[0]
    uniform = draw.astype(np.float32) * np.float32(2.0 ** -32) + np.float32(2.0 ** -33)
    return uniform > np.float32(p)


def keep_flash2(p, seed, offset, batch_head, i, j):
    """FlashAttention 2's map: a 7-round call covers one lane's part (16 bytes) of a block of 16 rows x 32 columns.

    The threshold is float32 arithmetic, as in the kernel's host code: 1.f - (float)p, then floor of 255 times it.
    """
    i, j = np.asarray(i)[:, None], np.asarray(j)[None, :]
    row, column = i % 16, j % 32
    lane = (row % 8) * 4 + (column % 8) // 2
    byte = 8 * (column // 16) + 4 * (column // 8 % 2) + 2 * (row // 8) + column % 2
    low = np.uint64((offset + batch_head * 32) & (2 ** 64 - 1)) + lane.astype(np.uint64)
    words = np.stack(philox4x32((low & LOW, low >> WORD, i // 16, j // 32), (seed & 0xFFFFFFFF, seed >> 32), 7))
    word = np.take_along_axis(words, (byte // 4)[None], 0)[0]
    draw = (word >> (8 * (byte % 4)).astype(np.uint32)) & np.uint32(0xFF)
    threshold = int(np.floor(float(np.float32(1) - np.float32(p)) * 255.0))
    return draw <= threshold
