/* SPDX-License-Identifier: MIT
 *
 * Numbers that are part of the binary interface and never change: status values, enums, flag bits, sizes and
 * offsets of the public structs. A failure here is a broken promise, not an expectation to update. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/extend.h"

#include <string.h>

static void status_values(void **state) {
    (void)state;
    static const struct {
        stw_status status;
        int value;
        const char *name;
    } rows[] = {
        {STW_OK, 0, "STW_OK"},
        {STW_E_INVALID, 1, "STW_E_INVALID"},
        {STW_E_UNSUPPORTED, 2, "STW_E_UNSUPPORTED"},
        {STW_E_NO_DRIVER, 3, "STW_E_NO_DRIVER"},
        {STW_E_NO_DEVICE, 4, "STW_E_NO_DEVICE"},
        {STW_E_NO_IMAGE, 5, "STW_E_NO_IMAGE"},
        {STW_E_WORKSPACE, 6, "STW_E_WORKSPACE"},
        {STW_E_NO_MEMORY, 7, "STW_E_NO_MEMORY"},
        {STW_E_DRIVER, 8, "STW_E_DRIVER"},
        {STW_E_INTERNAL, 9, "STW_E_INTERNAL"},
        {STW_E_DEVICE_LOST, 10, "STW_E_DEVICE_LOST"},
        {STW_E_FORKED, 11, "STW_E_FORKED"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        assert_int_equal(rows[i].status, rows[i].value);
        assert_string_equal(stw_status_name(rows[i].status), rows[i].name);
    }
    assert_string_equal(stw_status_name((stw_status)12), "STW_E_?");
    assert_string_equal(stw_status_name((stw_status)-1), "STW_E_?");
}

_Static_assert(STW_F16 == 1 && STW_BF16 == 2 && STW_F32 == 3, "dtypes");
_Static_assert(STW_BACKEND_CPU == 1 && STW_BACKEND_CUDA == 2 && STW_BACKEND_HIP == 3, "backends");
_Static_assert(STW_MEMORY_HOST == 1 && STW_MEMORY_DEVICE == 2 && STW_MEMORY_BUFFERS == 3, "memory kinds");
_Static_assert(STW_MASK_CAUSAL_TOP_LEFT == 1 && STW_MASK_CAUSAL_BOTTOM_RIGHT == 2, "masks");
_Static_assert(STW_DROPOUT_MEM_EFF == 1 && STW_DROPOUT_FLASH2 == 2, "dropout maps");
_Static_assert(STW_INTERVALS_NONE == 0 && STW_INTERVALS_FROM == 1 && STW_INTERVALS_RANGE == 2 &&
                   STW_INTERVALS_FROM_BELOW == 3 && STW_INTERVALS_RANGE_BELOW == 4 && STW_INTERVALS_TWO_RANGES == 5 &&
                   STW_ATTN_BLOCK_MASK == 0x8000 && STW_MASK_BLOCK == 128 && STW_DATA_INTERVALS == 0x20,
               "masks in memory");
_Static_assert(STW_OUT_DQ == 1 && STW_OUT_DSINK == 16, "outputs");
_Static_assert(STW_ATTN_HAS_SCALE == 1 && STW_ATTN_DLSE == 0x400, "flags");

_Static_assert(sizeof(stw_status) == 4 && sizeof(stw_dtype) == 4, "enums are ints");
_Static_assert(sizeof(stw_context_opts) >= STW_SIZE_CONTEXT_OPTS_0_1, "structs only grow");
_Static_assert(sizeof(stw_attn_desc) >= STW_SIZE_ATTN_DESC_0_1, "structs only grow");
_Static_assert(sizeof(stw_attn_args) >= STW_SIZE_ATTN_ARGS_0_1, "structs only grow");
_Static_assert(sizeof(stw_device_info) >= STW_SIZE_DEVICE_INFO_0_1, "structs only grow");
_Static_assert(sizeof(stw_image_info) >= STW_SIZE_IMAGE_INFO_0_1 && STW_SIZE_IMAGE_INFO_0_1 == 96, "structs only grow");
_Static_assert(STW_SIZE_CONTEXT_OPTS_0_1 == 40 && STW_SIZE_ATTN_DESC_0_1 == 528, "pinned at 0.1");
_Static_assert(STW_SIZE_ATTN_ARGS_0_1 == 240 && STW_SIZE_DEVICE_INFO_0_1 == 368, "pinned at 0.1");
_Static_assert(offsetof(stw_image_info, kind) == 64 && offsetof(stw_image_info, ops) == 96, "image");
_Static_assert(offsetof(stw_attn_desc, batch) == 32 && offsetof(stw_attn_desc, q) == 104, "descriptor");
_Static_assert(offsetof(stw_attn_desc, lse) == 296 && offsetof(stw_attn_desc, bias) == 368, "descriptor");
_Static_assert(offsetof(stw_attn_desc, heads_total) == 520, "descriptor");
_Static_assert(offsetof(stw_attn_desc, dim) == STW_SIZE_ATTN_DESC_0_1 && offsetof(stw_attn_desc, scale_f64) == 568 &&
                   offsetof(stw_attn_desc, interval_form) == 584 && offsetof(stw_attn_desc, intervals) == 592 &&
                   offsetof(stw_attn_desc, block_mask) == 624 && sizeof(stw_attn_desc) == 656 &&
                   offsetof(stw_attn_args, cpu_threads) == STW_SIZE_ATTN_ARGS_0_1 &&
                   offsetof(stw_attn_args, intervals) == 248 && offsetof(stw_attn_args, block_mask) == 256 &&
                   offsetof(stw_jagged_args, cpu_threads) == STW_SIZE_JAGGED_ARGS_0_1,
               "what came after 0.1");
_Static_assert(offsetof(stw_attn_args, q) == 8 && offsetof(stw_attn_args, status_out) == 232, "arguments");

_Static_assert(sizeof(stw_cp_transport) >= STW_SIZE_CP_TRANSPORT_0_1 && STW_SIZE_CP_TRANSPORT_0_1 == 96 &&
                   sizeof(stw_cp_desc) >= STW_SIZE_CP_DESC_0_1 && STW_SIZE_CP_DESC_0_1 == 96,
               "structs only grow");
_Static_assert(offsetof(stw_cp_transport, send) == 32 && offsetof(stw_cp_transport, error_text) == 88 &&
                   offsetof(stw_cp_desc, order) == 80 && offsetof(stw_cp_desc, ranks_per_node) == 88 &&
                   offsetof(stw_cp_desc, head_groups) == 92,
               "ranks");
_Static_assert(STW_CP_CONTIGUOUS == 1 && STW_CP_ZIGZAG == 2 && STW_CP_AUTO == 0 && STW_CP_RING == 1 &&
                   STW_CP_ALL_GATHER == 2 && STW_CP_ULYSSES == 3 && STW_CP_2D == 4,
               "ranks");

_Static_assert(STW_F64 == 4 && STW_I8 == 5 && STW_U8 == 6 && STW_I16 == 7 && STW_I32 == 8 && STW_I64 == 9,
               "dtypes of jagged operations");
_Static_assert(STW_JAGGED_MATMUL == 1 && STW_JAGGED_LINEAR == 2 && STW_JAGGED_SOFTMAX == 3 && STW_JAGGED_SUM == 4 &&
                   STW_JAGGED_SELECT == 5 && STW_JAGGED_GELU == 6 && STW_JAGGED_GELU_TANH == 7 &&
                   STW_JAGGED_SILU == 8 && STW_JAGGED_THRESHOLD == 9 && STW_JAGGED_LAYER_NORM == 10 &&
                   STW_JAGGED_RESHAPE == 11 && STW_JAGGED_TO_PADDED == 12 && STW_JAGGED_FROM_PADDED == 13 &&
                   STW_JAGGED_ATTENTION == 14 && STW_JAGGED_LOG_SOFTMAX == 15 && STW_JAGGED_RMS_NORM == 16,
               "jagged ops");
_Static_assert(STW_DIM_OUTER == 1 && STW_DIM_RAGGED == 2 && STW_DIM_INNER == 3 && STW_DIM_COMPONENT == 4 &&
                   STW_STORAGE_COMPONENTS == 0 && STW_STORAGE_JAGGED == 1,
               "dimensions and storages");
_Static_assert(STW_JAGGED_DX == 1 && STW_JAGGED_DOTHER == 2 && STW_JAGGED_DWEIGHT == 4 && STW_JAGGED_DBIAS == 8 &&
                   STW_JAGGED_HAS_USED == 1 && STW_JAGGED_GRAD_BASES == 0x400,
               "jagged outputs and flags");
_Static_assert(STW_JAGGED_DATA_OFFSETS == 1 && STW_JAGGED_DATA_USED == 0x10 && STW_JAGGED_DATA_INDEX == 0x100 &&
                   STW_JAGGED_DATA_BASES == 0x200,
               "jagged status bits");
_Static_assert(sizeof(stw_jagged_desc) >= STW_SIZE_JAGGED_DESC_0_1 && STW_SIZE_JAGGED_DESC_0_1 == 360 &&
                   sizeof(stw_jagged_args) >= STW_SIZE_JAGGED_ARGS_0_1 && STW_SIZE_JAGGED_ARGS_0_1 == 232,
               "structs only grow");
_Static_assert(offsetof(stw_jagged_desc, components) == 64 && offsetof(stw_jagged_desc, dim) == 124 &&
                   offsetof(stw_jagged_desc, threshold) == 184 && offsetof(stw_jagged_desc, attn) == 352,
               "jagged descriptor");
_Static_assert(offsetof(stw_jagged_args, grad) == 104 && offsetof(stw_jagged_args, attn) == 224, "jagged arguments");

static void version_is_the_header_s(void **state) {
    (void)state;
    assert_int_equal(stw_version(), STW_VERSION);
    assert_int_equal(STW_VERSION, 100);
}

static void last_error_is_empty_at_first(void **state) {
    (void)state;
    assert_string_equal(stw_last_error(), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_error_is_empty_at_first),
        cmocka_unit_test(status_values),
        cmocka_unit_test(version_is_the_header_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
