/* SPDX-License-Identifier: MIT
 *
 * Copies an input with a strided head dim into the workspace, rows contiguous. A CTA for
 * STW_STAGE_ROWS rows of one head; threads run along the rows where those are nearer in memory. */
#ifndef STW_COMMON_KERNELS_ATTN_STAGE_H
#define STW_COMMON_KERNELS_ATTN_STAGE_H

#include "common/device/device.h"
#include "common/params/attn_stage.h"

enum { ATTN_STAGE_THREADS = 256 };

template <typename T> DEV_FN void attn_stage(const stw_attn_stage &s) {
    int64_t work_tile = dev_cta(), strips = stw_stage_strips(&s), head = work_tile / strips, b = head / s.heads;
    int64_t first = work_tile % strips * STW_STAGE_ROWS, rows = stw_smaller(stw_stage_rows(&s) - first, STW_STAGE_ROWS);
    if (b >= s.batch || rows <= 0) return;
    const stw_tensor_param &f = s.from_strides, &t = s.to_strides;
    const T *from = (const T *)s.from + b * f.batch + head % s.heads * f.head + first * f.seq;
    T *to = (T *)s.to + b * t.batch + head % s.heads * t.head + first * t.seq;
    bool along_rows = f.seq > 0 && (s.from_col == 0 || f.seq < s.from_col);
    int inner = (int)(along_rows ? rows : s.cols), count = (int)(rows * s.cols);
    for (int e = dev_thread(); e < count; e += dev_threads()) {
        int64_t row = along_rows ? e % inner : e / inner, col = along_rows ? e / inner : e % inner;
        to[row * t.seq + col] = from[row * f.seq + col * s.from_col];
    }
}

#endif
