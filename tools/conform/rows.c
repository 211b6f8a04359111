/* SPDX-License-Identifier: MIT
 *
 * The rows of the conformance suite: every feature of specification section 2 with its alternatives, and how sizes,
 * head dims, heads and types rotate through them. A further alternative is a string here, nothing else. */
#include "conform.h"

#include "tools/problem/jagged.h"
#include "tools/verify/jagged.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- alternatives of jagged operations: every one comes with every element type (`%`), in turn with every
 * pattern of lengths and both types of offsets. */

#define LIST(name, ...) const char *const conform_jagged_##name[] = {__VA_ARGS__, NULL}

/* One row of elements for each position, whatever the op: sizes, storage, unused rows, alignment, outputs. */
#define SHAPES(op)                                                                                                     \
    op ":%:c7l60t200i33", op ":%:c9l40t150o3i8:used", op ":%:c5l200t500o2i5:jagged",                                   \
        op ":%:c6l90t300o3i17:jagged:used", op ":%:c3l5t9", op ":%:c1l70t70i257:lens_full:full", op ":%:c0l9t20i4",    \
        op ":%:c5l0t40i9", op ":%:c4l50t120i12:dx_f32", op ":%:c4l50t120i13:dx_f32:acc_x:used",                        \
        op ":%:c40l30t500:skew1", op ":%:c5l40t130i31:skew3:used", op ":%:c5l40t130i64:data_sd3",                      \
        op ":%:c300l7t900i8:used", op ":%:c33l700t1500i16:lens_huge:used"

LIST(pointwise, SHAPES("jagged_gelu"), SHAPES("jagged_gelu_tanh"), SHAPES("jagged_silu"),
     "jagged_gelu:%:c2l600t1000i64", "jagged_silu:%:c5l40t130i64:data_tiny",
     "jagged_gelu:%:c5l40t130i64:data_tiny:used", "jagged_gelu_tanh:%:c2l600t1000i64:data_sd3",
     "jagged_silu:%:c2l600t1000i64:data_sd3");

LIST(threshold, SHAPES("jagged_threshold"), "jagged_threshold:%:c7l60t200i33:thr0.5",
     "jagged_threshold:%:c7l60t200i33:thr0.1", "jagged_threshold:%:c7l60t200i40:used:thr-0.3",
     "jagged_threshold:%:c7l60t200i33:used:thr-1.25", "jagged_threshold:f64:c7l60t200i33:used:thr0.25",
     "jagged_threshold:i8:c7l60t200i33:used:thr3.5", "jagged_threshold:u8:c7l60t200i33:thr100",
     "jagged_threshold:i16:c7l60t200o2i33:jagged:thr-700.5", "jagged_threshold:i32:c7l60t200i33:used",
     "jagged_threshold:i64:c7l60t200i33:used:thr-1e10");

/* Along each dimension, whole and in part, contiguous or not, long and short lines. */
#define ALONG(op)                                                                                                      \
    op ":%:c7l60t200i33:inner:data_tiny", op ":%:c7l60t200i33:ragged:data_tiny:used", op ":%:c7l60t200i33:inner",      \
        op ":%:c7l60t200i32:ragged", op ":%:c7l60t200o9i5:outer", op ":%:c6l50t150o3i40:inner:used",                   \
        op ":%:c6l50t150o3i40:ragged:used", op ":%:c6l50t150o3i40:outer:used", op ":%:c6l50t150o3i40:inner:jagged",    \
        op ":%:c6l50t150o3i40:ragged:jagged:used", op ":%:c6l50t150o12i4:outer:jagged:used",                           \
        op ":%:c5l30t90i60:inner:ds5", op ":%:c5l30t90i60:inner:ds5:da4:used", op ":%:c5l30t90i60:inner:ds6:da10",     \
        op ":%:c5l30t90o12i7:outer:ds3:da2:jagged", op ":%:c5l30t90o12i7:outer:ds3:da4:used",                          \
        op ":%:c9l400t900:ragged", op ":%:c9l400t900:ragged:used:skew1", op ":%:c3l20t40i2000:inner",                  \
        op ":%:c3l9t20i4099:inner:skew3", op ":%:c31l3000t4000i3:ragged:lens_huge",                                    \
        op ":%:c5l1200t2400i70:ragged:lens_huge:used", op ":%:c4l50t120i12:inner:dx_f32:acc_x:used",                   \
        op ":%:c4l50t120i12:ragged:dx_f32:acc_x", op ":%:c0l9t20i4:ragged", op ":%:c4l0t20i4:ragged",                  \
        op ":%:c7l60t200i1:inner", op ":%:c7l60t200i48:inner:data_sd3", op ":%:c1l200t200i64:ragged:lens_full:full"

LIST(softmax, ALONG("jagged_softmax"));

LIST(log_softmax, ALONG("jagged_log_softmax"));

LIST(sum, "jagged_sum:%:c7l60t200i33:inner", "jagged_sum:%:c7l60t200i33:ragged", "jagged_sum:%:c7l60t200o9i5:outer",
     "jagged_sum:%:c6l50t150o3i40:inner:used", "jagged_sum:%:c6l50t150o3i40:ragged:used:jagged",
     "jagged_sum:%:c6l50t150o12i4:outer:jagged:used", "jagged_sum:%:c5l30t90i60:inner:ds5:da4:used",
     "jagged_sum:%:c5l30t90o12i7:outer:ds3:da2:jagged", "jagged_sum:%:c9l400t900:ragged:used:skew1",
     "jagged_sum:%:c3l20t40i2000:inner", "jagged_sum:%:c31l3000t4000i3:ragged:lens_huge",
     "jagged_sum:%:c4l50t120i12:inner:dx_f32:acc_x:used", "jagged_sum:%:c4l50t120i12:ragged:dx_f32",
     "jagged_sum:%:c0l9t20i4:ragged", "jagged_sum:%:c4l0t20i4:ragged", "jagged_sum:%:c40l30t500i1:inner:skew1",
     "jagged_sum:f64:c7l60t200i33:inner:used", "jagged_sum:f64:c7l60t200i33:ragged:used",
     "jagged_sum:i8:c7l60t200i33:inner", "jagged_sum:u8:c7l60t200o4i33:outer:used",
     "jagged_sum:i16:c7l60t200o4i33:ragged:jagged", "jagged_sum:i32:c7l60t200i33:ragged:used",
     "jagged_sum:i64:c7l60t200i33:inner:used");

LIST(select, "jagged_select:%:c7l60t200i33:inner:index0", "jagged_select:%:c7l60t200i33:inner:index-1",
     "jagged_select:%:c7l60t200i33:component:index3", "jagged_select:%:c7l60t200o2i33:component:index-1:used",
     "jagged_select:%:c7l60t200o9i5:outer:index4", "jagged_select:%:c6l30t180o3i40:ragged:index0:lens_full",
     "jagged_select:%:c6l30t180o3i40:ragged:index-1:lens_full:jagged",
     "jagged_select:%:c6l30t180i7:ragged:index7:lens_full",
     "jagged_select:%:c6l30t180o2i7:ragged:index-1:lens_full:used",
     "jagged_select:%:c6l30t180o3i40:ragged:index-1:lens_full:used",
     "jagged_select:%:c6l30t180i5:ragged:index0:lens_full:used:jagged",
     "jagged_select:%:c6l50t150o3i40:inner:used:index17", "jagged_select:%:c6l50t150o12i4:outer:jagged:used:index11",
     "jagged_select:%:c5l30t90i60:inner:ds5:da4:used:index2",
     "jagged_select:%:c5l30t90o12i7:outer:ds3:da2:jagged:index-2",
     "jagged_select:%:c4l50t120i12:inner:dx_f32:acc_x:used:index5",
     "jagged_select:%:c4l30t120i12:ragged:dx_f32:lens_full:index3", "jagged_select:%:c5l40t130i31:skew3:inner:index30",
     "jagged_select:%:c0l9t20i4:inner:index1", "jagged_select:f64:c7l60t200i33:inner:used:index2",
     "jagged_select:i8:c7l60t200i33:component:index2", "jagged_select:u8:c6l30t180i33:ragged:index-3:lens_full",
     "jagged_select:i16:c7l60t200o4i9:outer:index1:used", "jagged_select:i32:c7l60t200i33:inner:index9",
     "jagged_select:i64:c7l60t200i33:inner:index9:used");

/* Rows of both norms: gamma, lines within inner, long lines, column sums of many rows. */
#define NORMS(op)                                                                                                      \
    SHAPES(op), op ":%:c7l60t200i33:gamma", op ":%:c7l60t200o3i65:gamma:used:jagged",                                  \
        op ":%:c7l60t200o3i65:gamma:used:weight_f32", op ":%:c5l60t200i64:ds16:gamma",                                 \
        op ":%:c5l60t200o2i60:ds20:gamma:used:inner", op ":%:c4l400t900i16:gamma:out_w:dweight_f32:acc_w",             \
        op ":%:c4l40t90i2048:gamma", op ":%:c4l40t90i5000:gamma:used:skew1", op ":%:c3l20t50i4000:gamma:used",         \
        op ":%:c3l9t20i9000:gamma:used", op ":%:c0l9t20i40:gamma", op ":%:c31l3000t4000i8:gamma:lens_huge:used",       \
        op ":%:c7l60t200i33:ragged", op ":%:c6l50t150o3i40:ragged:used", op ":%:c6l50t150o3i40:ragged:jagged:used",    \
        op ":%:c9l400t900:ragged:used:skew1", op ":%:c31l3000t4000i3:ragged:lens_huge",                                \
        op ":%:c5l1200t2400i70:ragged:lens_huge:used", op ":%:c4l50t120i12:ragged:dx_f32:acc_x:used",                  \
        op ":%:c0l9t20i4:ragged", op ":%:c4l0t20i4:ragged", op ":%:c1l200t200i64:ragged:lens_full:full",               \
        op ":%:c7l60t200i48:ragged:data_sd3"

LIST(layer_norm, NORMS("jagged_layer_norm"), "jagged_layer_norm:%:c4l400t900i128:gamma:out_w:out_b",
     "jagged_layer_norm:%:c4l400t900i16:out_b", "jagged_layer_norm:%:c5l0t40i9:gamma:dbias_f32:acc_b:out_b",
     "jagged_layer_norm:%:c3l40t100i300:gamma:dx_f32:acc_x:dweight_f32:acc_w:dbias_f32:acc_b:out_x:out_w:out_b");

LIST(rms_norm, NORMS("jagged_rms_norm"), "jagged_rms_norm:%:c4l400t900i128:gamma:out_w",
     "jagged_rms_norm:%:c4l400t900i16:out_w", "jagged_rms_norm:%:c5l0t40i9:gamma:dweight_f32:acc_w:out_w",
     "jagged_rms_norm:%:c300l90t9000i24:gamma:used",
     "jagged_rms_norm:%:c3l40t100i300:gamma:dx_f32:acc_x:dweight_f32:acc_w:out_x:out_w");

LIST(reshape, "jagged_reshape:%:c7l60t200:shape-1,12:gshape-1,3,4",
     "jagged_reshape:%:c7l60t200:shape4,-1,3:gshape-1,12", "jagged_reshape:%:c7l60t200:shape4,-1,3:gshape12,-1:used",
     "jagged_reshape:%:c7l60t200:shape-1,12:gshape2,-1,6:used:grad_jagged",
     "jagged_reshape:%:c7l60t200:shape3,2,-1,5:gshape6,-1,5:jagged:grad_jagged",
     "jagged_reshape:%:c7l60t200:shape3,2,-1,5:gshape6,-1,5:jagged:used",
     "jagged_reshape:%:c7l60t200:shape-1:gshape-1,1:skew1", "jagged_reshape:%:c7l60t200:shape2,-1,6:gshape-1,12:dx_f32",
     "jagged_reshape:%:c7l60t200:shape2,-1,6:gshape-1,12:dx_f32:acc_x:used",
     "jagged_reshape:%:c1l70t70:shape-1,257:gshape-1,257:lens_full:full",
     "jagged_reshape:%:c0l9t20:shape-1,4:gshape4,-1", "jagged_reshape:f64:c7l60t200:shape4,-1,3:gshape-1,12:used",
     "jagged_reshape:i8:c7l60t200:shape-1,12:gshape-1,3,4", "jagged_reshape:u8:c7l60t200:shape4,-1,3:gshape-1,12",
     "jagged_reshape:i16:c7l60t200:shape4,-1,3:gshape12,-1:jagged",
     "jagged_reshape:i32:c7l60t200:shape4,-1,3:gshape-1,12:used",
     "jagged_reshape:i64:c7l60t200:shape-1,12:gshape-1,3,4");

#define PADDED(op)                                                                                                     \
    op ":%:c7l60t200i33p60", op ":%:c7l60t200i33p80:used", op ":%:c7l60t200i33p20", op ":%:c7l60t200o2i40p20:used",    \
        op ":%:c7l60t200o3i7p61:jagged:used", op ":%:c7l60t200o3i7p59", op ":%:c5l40t130i31p40:skew3:used",            \
        op ":%:c4l50t120i12p50:dx_f32:acc_x:used", op ":%:c4l50t120i12p64:dx_f32", op ":%:c9l40t90p7",                 \
        op ":%:c4l20t50i4p0", op ":%:c0l9t20i4p5", op ":f64:c7l60t200i33p60:used", op ":i8:c7l60t200i33p70",           \
        op ":u8:c7l60t200o2i33p50:jagged", op ":i16:c7l60t200i33p60:used", op ":i32:c7l60t200i33p60",                  \
        op ":i64:c7l60t200i33p66:used"
LIST(padded, PADDED("jagged_to_padded"), PADDED("jagged_from_padded"));

LIST(linear, "jagged_linear:%:c7l60t200i33f40:data_tiny", "jagged_linear:%:c7l60t200i64f96:data_tiny:used",
     "jagged_linear:%:c7l60t200i33f17", "jagged_linear:%:c7l60t200i64f96:used",
     "jagged_linear:%:c5l40t130o3i40f24:jagged:used", "jagged_linear:%:c5l40t130o2i16f200:used",
     "jagged_linear:%:c3l5t9i1f1", "jagged_linear:%:c1l130t130i128f64:lens_full:full",
     "jagged_linear:%:c4l300t700i48f40", "jagged_linear:%:c4l90t200i130f129:used:skew1",
     "jagged_linear:%:c4l50t120i32f48:out_x", "jagged_linear:%:c4l50t120i32f48:out_w:dweight_f32:acc_w:used",
     "jagged_linear:%:c4l50t120i32f48:out_b:dbias_f32:acc_b",
     "jagged_linear:%:c4l50t120i33f48:dx_f32:acc_x:out_x:out_b", "jagged_linear:%:c0l9t20i4f8",
     "jagged_linear:%:c9l150t330i264f136:used", "jagged_linear:%:c3l1500t4300i8f16:used",
     "jagged_linear:%:c40l9t200i72f264", "jagged_linear:%:c5l0t40i9f3",
     "jagged_linear:%:c31l900t1300i24f16:lens_huge:used", "jagged_linear:%:c3l40t100i64f72:data_sd3",
     "jagged_linear:%:c3l1500t4300i8f9:used", "jagged_linear:%:c3l150t330i136f144:used:skew1");

LIST(matmul, "jagged_matmul:%:c7m60k33n40:tm200:data_tiny", "jagged_matmul:%:c7m33k60n17:tk200:ot:data_tiny:used",
     "jagged_matmul:%:c7m60k33n17:tm200", "jagged_matmul:%:c7m33k60n17:tk200", "jagged_matmul:%:c7m33k17n60:tn200",
     "jagged_matmul:%:c5m40k30n20", "jagged_matmul:%:c6m50k64n96:tm150:used", "jagged_matmul:%:c6m20k50n24:tk150:used",
     "jagged_matmul:%:c6m20k24n50:tn150:used", "jagged_matmul:%:c5o3m40k24n16:tm120:used",
     "jagged_matmul:%:c5o2m24k40n16:tk120:jagged:other_jagged:used",
     "jagged_matmul:%:c5o2m40k24n16:tm120:jagged:grad_jagged",
     "jagged_matmul:%:c5m24k16n40:tn120:other_jagged:grad_jagged:used", "jagged_matmul:%:c7m40k32n24:tm130:xt:ot:gt",
     "jagged_matmul:%:c7m33k40n24:tk130:xt:used", "jagged_matmul:%:c7m33k40n24:tk130:ot",
     "jagged_matmul:%:c7m33k24n40:tn130:gt:used", "jagged_matmul:%:c7o2m40k32n24:tm130:xt:jagged:gt:grad_jagged",
     "jagged_matmul:%:c6m40k24n30:tm120:tn90:gb9000", "jagged_matmul:%:c6m40k24n30:tm120:tn90:gb9000:used:gt",
     "jagged_matmul:%:c6m40k30n24:tm120:tk90:xb9000:used", "jagged_matmul:%:c6m24k40n30:tk120:tn90:ob9000:xt",
     "jagged_matmul:%:c5m20k16n12:tm60:tk50:tn40:xb4000:ob4000:gb4000:used",
     "jagged_matmul:%:c5o2m20k16n12:tm60:tk50:tn40:xb4000:ob4000:gb4000",
     "jagged_matmul:%:c6m40k24n30:tm120:xb6000:ob6000", "jagged_matmul:%:c7m60k33n17:tm200:out_x",
     "jagged_matmul:%:c7m60k33n17:tm200:out_o:used",
     "jagged_matmul:%:c7m60k33n17:tm200:dx_f32:dother_f32:acc_x:acc_o:used", "jagged_matmul:%:c7m60k33n17:tm200:skew1",
     "jagged_matmul:%:c4m130k140n150:tm300:used", "jagged_matmul:%:c0m9k4n5:tm20", "jagged_matmul:%:c4m0k4n5:tm20",
     "jagged_matmul:%:c4m9k0n5:tm20", "jagged_matmul:%:c4m9k5n0:tm20", "jagged_matmul:%:c21m700k24n16:tm1000:lens_huge",
     "jagged_matmul:%:c2m80k80n80:tm160:lens_full:full", "jagged_matmul:%:c2m64k300n64:data_sd3",
     "jagged_matmul:%:c3m140k136n144:tm300:used", "jagged_matmul:%:c2m2500k8n5:tm5000",
     "jagged_matmul:%:c3m136k144n140:tm300:xt:ot");

LIST(attention, "jagged_attention:i32:attn_bwd:%:b4h2s50x40d64:thd",
     "jagged_attention:i64:attn_bwd:%:b4h2s50x40d64:thd",
     "jagged_attention:i64:attn_bwd:%:b5h4k2s60d32:thd:used:causal_br",
     "jagged_attention:i64:attn_bwd:%:b3h2s33x65d40:thd:seqs_zeros",
     "jagged_attention:i32:attn_bwd:%:b5h4k2s60d32:thd:used:causal_br",
     "jagged_attention:i64:attn_bwd:%:b5h2s70d128:thd:bhsd:lens_q",
     "jagged_attention:i64:attn_bwd:%:b3h2s40d16:thd:dropout0.2:det");

/* Fills in the type; takes the pattern of lengths and the type of offsets of this round unless told. */
void conform_jagged_line(const char *option, unsigned round, char *line) {
    static const char *const dtypes[] = {"bf16", "f32", "f16"};
    static const char *const lens[] = {"", ":lens_full", ":lens_zeros", ":lens_huge"};
    const char *slot = strchr(option, '%');
    int attention = !strncmp(option, "jagged_attention", 16);
    int fixed = attention || strstr(option, "lens_") || strstr(option, "b4000") || strstr(option, "b9000");
    const char *pattern = fixed ? "" : lens[round / 3 % 4];
    const char *index = !attention && !strstr(option, ":i32") && round % 2 ? ":i64" : "";
    if (slot)
        snprintf(line, CONFORM_LINE_MAX, "%.*s%s%s%s%s", (int)(slot - option), option, dtypes[round % 3], slot + 1,
                 pattern, index);
    else snprintf(line, CONFORM_LINE_MAX, "%s%s%s", option, pattern, index);
}

/* ---- rows ---- */

/* From these sizes on they are what an alternative is about; more of them would take emulators minutes each.
 */
#define BATCH_ALONE    100
#define SEQUENCE_ALONE 1000

#define ALTERNATIVES(...)                                                                                              \
    (const char *const[]) { __VA_ARGS__, NULL }

/* Visible distances are at most 2^24, which f32 holds; those of the tile's first rows are masked away and are
 * more. S is nothing but a distance times a power of two, and exact. */
#define ALIBI_FAR "b1h2s40x1d16 alibi:scale0:shift-16777249:wr16777216"

/* The smallest word w that an element draws: 4680085 at (0, 2, 2) by philox, 6590644 at element 232 by
 * mem_eff. p is the largest that keeps it (philox: w / 2^32, mem_eff: (w - 1/2) / 2^32), and 2^-32 more. */
#define PHILOX_KEPT     "b1h2s17x12d16 dropout0.0010896672029048204:dseed1"
#define PHILOX_DROPPED  "b1h2s17x12d16 dropout0.001089667435735464:dseed1"
#define MEM_EFF_KEPT    "b1h2s17x12d16 dropout0.0015345037681981921:map_mem_eff:dseed7"
#define MEM_EFF_DROPPED "b1h2s17x12d16 dropout0.0015345040010288358:map_mem_eff:dseed7"

const conform_row conform_rows[] = {
    {"plain", "self and cross attention at tile boundaries and off them, every type",
     ALTERNATIVES("", "grads_qkv", "scale0.3", "scale0"), 15},
    {"head_dims", "head dims 1..256, equal and unequal",
     ALTERNATIVES("d1", "d3", "d8", "d16", "d17", "d32", "d33", "d40", "d64", "d80", "d96", "d127", "d128", "d160",
                  "d192", "d255", "d256", "d192x128", "d64x17", "d5x256", "d128x192"),
     3},
    {"wide_heads", "head dims 129..256, equal and unequal, under every mask and layout",
     ALTERNATIVES("b2h2s130x257d256 ", "b1h4k2s300x200d192 causal_br", "b2h2s129x131d192x128 causal_tl",
                  "b1h2s200x190d136 wl9:wr3", "b1h3s65x97d200 ", "b2h2s64x128d160x136 bhsd", "b1h2s128x64d144x192 ",
                  "b3h4k2s190x200d256 thd:causal_br", "b5h2s90x100d192x128 thd:used:seqs_full", "b2h2s165x197d192 used",
                  "b3h2s300x270d192 used:causal_tl:det", "b2h4k2s60x500d256 det",
                  "b3h2s200x190d192x128 det:thd:used:causal_br", "b1h2s100x300d192 det:wl3:wr0",
                  "b9h8s129x385d256 causal_br", "b12h8k4s65x500d192x128 thd:used", "b1h2s70x210d256 data_small",
                  "b2h2s97x65d192 data_denormal_dout:causal_br", "b1h2k1s61x200d192x128 data_denormal_q",
                  "b1h2s257x258d256 data_inf_lse", "b1h2s257x258d192 data_dead_rows:causal_tl:dlse",
                  "b1h4k2s200x150d192x128 data_dead_rows:wl40:wr9:sink:grads_qkvs"),
     3},
    {"layout", "batch, head and sequence strides; gaps; packed interleaved qkv; element alignment",
     ALTERNATIVES("bhsd", "gap3", "gap8", "bhsd:gap1", "qkv", "qkv:gap5", "skew1", "skew3:gap1", "bhsd:skew7"), 6},
    {"alignment", "rows, strides and addresses off 16 bytes: enough keys that GPUs copy the inputs, and fewer",
     ALTERNATIVES("b2h4k2s128x256d66 grads_qkv", "b1h4k1s200x300d100 causal_br", "b2h2s130x270d34 used:dlse",
                  "b3h2s300x270d66 thd:used", "b2h4k2s129x257d128 gap1", "b1h4k2s130x260d40x36 bhsd:gap3:det",
                  "b1h2s130x300d64 skew1:any_address", "b1h2s200x190d96 bhsd:skew3:causal_tl:any_address",
                  "b2h3s70x40d100 grads_qkv", "b1h4k2s140x250d36 bias_bhqk:grads_qkvb", "b2h4k2s160x300d34 causal_tl",
                  "b1h2s200x260d127x61 wl90:dropout0.1", "b1h2k1s200x260d66 dk_f32:dv_f32:acc_kv:gap1",
                  "b1h2s200x260d250x129 skew1", "b1h2s200d17 det", "b2h2s170x260d62 intervals_two"),
     3},
    {"broadcast", "inputs with strides of 0 and strided head dims, full and partial tiles",
     ALTERNATIVES("b2h4k2s128x256d64 st_dout0,0,0,0", "b2h3s65x70d64 st_dout0,0,0",
                  "b3h4k2s65x130d64 st_k0,0,64:st_v0,0,64", "b2h3s130x97d128 st_k0,128,0:st_v97,0,0:st_q0,0,128",
                  "b2h2s128x128d128 st_q0,0,0:st_out0,0,0:st_dout0,0,0:causal_br",
                  "b3h4k2s65x200d64 st_q33280,130,520,2:st_k25600,1,200,200:st_v0,0,64:dlse",
                  "b2h2s100x90d40 st_out0,0,1,100:st_dout0,0,0,3:delta_out:det",
                  "b3h2s300x270d64 thd:st_dout0,0,0,0:st_k0,64,128,2",
                  "b2h2s66x33d17 st_q0,2,40,0:bias_bhqk:grads_qkvb", "fwd st_q0,96,0:st_k0,3,300,2:st_v0,0,0"),
     6},
    {"varlen", "cu_seqlens: ragged, full, mostly empty sequences, rows of nobody before and behind",
     ALTERNATIVES("thd", "thd:seqs_full", "thd:seqs_zeros", "thdq", "thdk", "thd:qkv", "thd:bhsd", "thd:gap3:causal_br",
                  "thd:causal_tl", "thd:seqs_zeros:causal_br", "thd:wl5:wr5", "b3h4k2s9000x7000d64 thd:tq333:tk404",
                  "b5h2s4000d32 thd:tq300:tk300:causal_br:det", "b300h2s400d32 thd:tq900:tk900:causal_br",
                  "b4h8k2s3000x150d40 thdq:tq200"),
     5},
    {"used_lengths", "padding of keys and queries, dense and between packed sequences",
     ALTERNATIVES("used", "lens_zero", "lens_q", "lens_kv", "used:thd", "used:thd:seqs_full", "used:causal_br",
                  "used:thd:causal_br", "lens_kv:causal_tl", "used:bhsd:bias_bhqk:grads_qkvb"),
     4},
    {"empty", "no batch, no queries, no keys, zero-length sequences: zeros, never garbage",
     ALTERNATIVES("b0h2s17d16 ", "b2h2s0x9d16 ", "b2h2s9x0d16 ", "b2h2s0x0d8 ", "b3h4k2s0x65d64 thd",
                  "b3h4k2s65x0d64 thd", "b2h2s0x9d16 bias_bhqk:sink:grads_qkvbs", "b2h2s9x0d16 sink:dlse:grads_qkvs",
                  "b2h2s9x0d16 bias_1hqk:grads_qkvb", "b3h2s20d40 thd:lens_zero", "b2h3s5x70d64 thd:tq0",
                  "b2h4k2s90x7d64 thd:tk0:dlse", "b3h2s9x7d16 thd:tq0:tk0:delta_out", "b1h1s1d16 ",
                  "b1h1s1d16 causal_tl", "b2h2s9x0d16 acc_qkv:dq_f32:dk_f32:dv_f32", "b1h2s1x150d64 st_dq512,256,0"),
     3},
    {"mask_causal_tl", "j <= i", ALTERNATIVES("causal_tl", "causal_tl:bhsd", "causal_tl:shift2"), 9},
    {"mask_causal_br", "j <= i + Lk - Lq; rows without keys when Sq > Sk",
     ALTERNATIVES("causal_br", "causal_br:gap3", "causal_br:shift-2", "b2h2s97x20d32 causal_br",
                  "b1h2s130x3d64 causal_br:sink:dlse:grads_qkvs"),
     7},
    {"mask_window", "left, right, both, with causal",
     ALTERNATIVES("wl0", "wr0", "wl7", "wr7", "wl16:wr1", "wl0:wr0", "wl100:wr100", "causal_tl:wl13", "causal_br:wl31",
                  "causal_tl:wr5", "wl3:shift9", "wr40:shift-30", "b2h2s70x20d32 wl2:wr2"),
     4},
    {"mask_shift", "diagonal_shift of either sign, far off included",
     ALTERNATIVES("causal_tl:shift5", "causal_br:shift-7", "wl4:wr4:shift1", "causal_tl:shift-1000",
                  "causal_br:shift1000", "shift3:alibi", "wl2:shift-200"),
     4},
    {"bias", "every broadcast, both types, odd row strides",
     ALTERNATIVES("bias_bhqk", "bias_1hqk", "bias_b1qk", "bias_bh1k", "bias_bhq1", "bias_11qk", "bias_1h1k",
                  "bias_b11k", "bias_111k", "bias_11q1", "bias_1111", "bias_bh11", "biasf32_bhqk", "biasf32_11qk",
                  "bias_bhqk:gap1", "bias_bhqk:skew1", "bias_bhqk:thd", "biasf32_1hqk:thd:used", "bias_bhqk:causal_br",
                  "b1h4k2s100x330d128 bias_1hqk:causal_br", "b2h3s98x290d64 bias_bhqk:thd:wl90",
                  "b2h2s65x200d64 bias_b11k:skew1", "b1h4k2s130x200d192 biasf32_bhqk:causal_br",
                  "b2h2s70x170d256 bias_1hqk:thd:used", "b1h2s150x290d128 biasf32_b1qk:gap1:det",
                  "b2h2s97x130d192x128 biasu8_b1qk:data_inf_keys", "b1h2s100x290d32 bias_bhqk:wl80",
                  "b2h2k1s70x260d96 bias_1hqk", "b1h2s100x200d192x128 bias_b1qk:causal_tl",
                  "b1h2k1s100x200d256 bias_bhqk", "b1h2s100x290d128 biasf32_bhqk",
                  "b1h2s70x200d250 biasf32_1hqk:causal_br"),
     3},
    {"dbias", "gradient in the bias's own shape, every broadcast, masked entries written as zeros",
     ALTERNATIVES("bias_bhqk:grads_qkvb", "bias_1hqk:grads_qkvb", "bias_b1qk:grads_qkvb", "bias_bh1k:grads_qkvb",
                  "bias_bhq1:grads_qkvb", "bias_11qk:grads_b", "bias_1h1k:grads_qkvb", "bias_b11k:grads_qkvb",
                  "bias_111k:grads_qkvb", "bias_11q1:grads_b", "bias_1111:grads_qkvb", "bias_bh11:grads_qkvb",
                  "biasf32_bhqk:grads_qkvb", "biasf32_11qk:grads_qkvb", "bias_bhqk:dbias_f32:grads_qkvb",
                  "bias_1hqk:gap3:grads_qkvb", "bias_bhqk:thd:grads_qkvb", "bias_11qk:thd:used:grads_qkvb",
                  "bias_bhqk:causal_tl:grads_qkvb", "bias_1hqk:causal_br:grads_qkvb", "bias_bhqk:wl3:wr3:grads_b",
                  "bias_b1qk:dropout0.2:grads_qkvb", "bias_1h1k:softcap9:det:grads_qkvb",
                  "b1h4k2s200x264d128 bias_bhqk:grads_qkvb:causal_br", "b2h3s130x257d64 biasf32_bhqk:grads_qkvb:wl40",
                  "b2h2s100x170d256 bias_bhqk:grads_qkvb:det:skew1",
                  "b1h2s130x97d192x128 biasf32_bhqk:thd:used:grads_qkvb",
                  "b2h2s150x200d96 bias_bhqk:dbias_f32:acc_b:grads_qkvb",
                  "b1h4k2s100x170d128 biasf32_bhqk:acc_b:grads_qkvb:causal_br",
                  "b2h2s97x130d64 bias_bhqk:dbias_f32:acc_b:grads_qkvb:det:thd:used",
                  "b2h2s66x90d136 bias_bhqk:dbias_f32:grads_qkvb",
                  "b3h4k2s230x250d64 bias_bhqk:thd:used:causal_br:grads_qkvb:det"),
     3},
    {"mask_bytes", "a bias of bytes, 0 hides the pair: every broadcast, whole rows, full and cut tiles",
     ALTERNATIVES("biasu8_bhqk", "biasu8_1hqk", "biasu8_b1qk", "biasu8_bh1k", "biasu8_bhq1", "biasu8_11qk",
                  "biasu8_b11k", "biasu8_1111", "biasu8_bhqk:gap1", "biasu8_1hqk:skew1", "biasu8_b1qk:thd",
                  "biasu8_1hqk:thd:used:causal_br", "biasu8_11qk:causal_tl:wl40", "biasu8_bhqk:alibi",
                  "biasu8_1hqk:softcap5", "biasu8_b1qk:dropout0.2", "biasu8_11qk:det:dropout0.1",
                  "biasu8_b1qk:data_inf_keys", "biasu8_11qk:data_inf_keys:sink:dlse:grads_qkvs",
                  "biasu8_bhqk:delta_in:dk_f32:dv_f32", "b1h2s128x256d64 biasu8_11qk",
                  "b1h4k2s128d128 biasu8_b1qk:data_inf_keys", "b1h2s64x192d32 biasu8_bhqk:softcap8:alibi",
                  "b1h1s64x128d256 biasu8_1hqk:dropout0.1", "b2h2s65x200d80 biasu8_bhqk:data_low_keys",
                  "biasu8_bhqk:wl9:shift2:scale0.3:lse_heads:delta_out:dlse:dropout0.2:map_flash2:boff2:"
                  "hoff1:htotal64:qoff5:koff3:dq_f32:dk_f32:dv_f32:acc_qkv",
                  "biasu8_b1qk:dropout0.3:map_mem_eff:pointer:alibi:sink:grads_qkvs:used:thd",
                  "fwd biasu8_b1qk:data_inf_keys", "b1h2s100x200d192 biasu8_b1qk:causal_br",
                  "b1h2k1s100x200d256 biasu8_bhqk:data_inf_keys", "b1h2s130x290d32 biasu8_11qk"),
     3},
    {"intervals", "rows that do not see a key: every form and every kind of mask, for all heads or each",
     ALTERNATIVES(
         "intervals_from", "intervals_range", "intervals_from_below", "intervals_range_below", "intervals_two",
         "intervals_two:mask_heads", "intervals_from:causal_br:draw_documents:draw9",
         "intervals_from_below:draw_documents:draw20:mask_heads", "intervals_from_below:draw_prefix",
         "intervals_from_below:draw_chunk:draw16", "intervals_from_below:draw_tree:draw7",
         "intervals_from:causal_tl:draw_tree:draw5", "intervals_from_below:draw_sliding:draw12",
         "intervals_range:draw_padding", "intervals_from_below:draw_causal", "intervals_two:draw_dead",
         "intervals_range:draw_hidden", "intervals_range:draw_hidden:sink:dlse:grads_qkvs", "intervals_two:draw_open",
         "intervals_range_below:draw_dead:sink:dlse:grads_qkvs", "intervals_two:bhsd:gap3", "intervals_two:skew1",
         "intervals_two:qkv", "intervals_two:thd:mask_heads", "intervals_range_below:thd:used:causal_br",
         "intervals_from:thd:causal_br:draw_documents:draw9:mask_heads", "intervals_two:thdk:seqs_zeros",
         "intervals_two:thdq:mask_heads", "intervals_two:used:causal_tl", "intervals_range_below:lens_zero",
         "intervals_two:wl9:wr3", "intervals_two:qoff7:koff5:causal_tl", "intervals_two:pointer:causal_br:mask_heads",
         "intervals_from_below:qoff40:koff33:wl9:draw_chunk", "intervals_two:bias_bhqk:grads_qkvb",
         "intervals_two:bias_1hqk:grads_qkvb:mask_heads", "intervals_range:bias_11q1:grads_b",
         "intervals_two:biasu8_b1qk", "intervals_two:alibi:softcap5", "intervals_two:dropout0.2:mask_heads",
         "intervals_from:dropout0.3:map_flash2", "intervals_range:dropout0.3:map_mem_eff:det",
         "intervals_two:det:mask_heads", "intervals_two:grads_q", "intervals_two:grads_kv",
         "intervals_two:acc_qkv:dq_f32:dk_f32:dv_f32", "intervals_from_below:acc_qkv:dq_f32:dk_f32:dv_f32:draw_hidden",
         "intervals_two:delta_in", "intervals_two:delta_out:dlse", "intervals_two:data_inf_lse",
         "b2h2s65x130d64 intervals_two:data_sd3", "intervals_two:data_denormal", "intervals_two:data_small:causal_br",
         "intervals_two:any_address:skew1",
         "intervals_two:wl30:shift2:scale0.3:lse_heads:delta_out:dlse:dropout0.2:map_flash2:boff2:hoff1:htotal64:qoff5:"
         "koff3:data_sd3"),
     4},
    {"interval_tiles", "tiles that intervals leave out, cut and leave whole, at lengths of several tiles",
     ALTERNATIVES(
         "b2h4k2s300x400d64 intervals_two:mask_heads", "b1h4k2s500d64 intervals_from:causal_br:draw_documents:draw70",
         "b1h4k1s500x600d128 intervals_from_below:draw_documents:draw90:det",
         "b1h2s600d128 intervals_from_below:draw_tree:draw60", "b1h2s520d96 intervals_from_below:draw_sliding:draw100",
         "b1h2s400x600d64 intervals_from_below:draw_prefix:draw200",
         "b1h2s512d64 intervals_from_below:draw_chunk:draw128", "b1h2s513x511d64 intervals_from_below:draw_causal",
         "b1h2s400x300d128 intervals_two:draw_dead:causal_br", "b2h2s300x400d256 intervals_two:mask_heads",
         "b1h2s260x390d192x128 intervals_range_below:det", "b3h4k2s300x400d64 intervals_two:thd:mask_heads:det",
         "b3h2s300d128 intervals_from:thd:causal_br:draw_documents:draw60",
         "b2h2s300x400d64 intervals_two:used:dropout0.1:mask_heads",
         "b1h2s300x400d64 intervals_two:bias_1hqk:grads_qkvb", "b1h2s300x400d64 intervals_two:bias_bhqk:grads_qkvb",
         "b2h3s300x330d40 intervals_two:sink:dlse:grads_qkvs:mask_heads",
         "b2h2s400x390d128 intervals_two:st_intervals0,0,8,2",
         "b3h2s300x400d64 intervals_two:thd:st_intervals1604,0,4,1",
         "b2h4k2s300x400d64 intervals_two:st_intervals0,4,8,1:qoff100:koff40",
         "b1h8k2s700d64 intervals_two:det:mask_heads", "b1h2s16x2100d64 intervals_range:draw_padding",
         "b1h2s2300x130d64 intervals_two:draw_documents:draw300", "b1h2s300x400d64 intervals_two:data_nan_lse",
         "b1h2s300x400d64 intervals_two:data_dead_rows:dlse", "b1h2s700x70d64 intervals_two:acc_q:dq_f32",
         "fwd intervals_two:mask_heads", "fwd b2h4k2s300x400d64 intervals_two:mask_heads",
         "fwd b3h2s300d64 intervals_from:thd:causal_br:draw_documents:draw60:dropout0.1",
         "fwd b1h2s300x400d128 intervals_range_below:draw_dead:sink", "b1h2s321x451d32 intervals_two:det:mask_heads",
         "b2h4k2s300x450d128 intervals_from_below:draw_documents:draw50:det",
         "b1h2s400x410d192 intervals_from:causal_br:draw_documents:draw70:det",
         "b1h2s300x390d256 blockmask:det:mask_heads", "b1h2s300d96 intervals_from_below:draw_tree:draw40:det",
         "b1h4k2s300d160 intervals_from:causal_br:draw_documents:draw70",
         "b1h4k1s300x400d200 intervals_from_below:draw_documents:draw90:det",
         "b3h4k2s165x197d192 intervals_two:thd:used:mask_heads:det",
         "b2h3s200x230d256 intervals_two:draw_dead:causal_br", "b1h2s200x230d192 intervals_two:data_denormal",
         "b1h2s130x1100d256 intervals_two:wl90:wr30"),
     4},
    {"block_mask", "blocks of 128 rows and keys that are hidden, for all heads or each, alone and with intervals",
     ALTERNATIVES(
         "blockmask", "blockmask:mask_heads:grads_qkvs:sink", "b2h4k2s300x500d64 blockmask",
         "b2h4k2s500x400d128 blockmask:mask_heads", "b1h2s600d64 blockmask:causal_br:det",
         "b1h2s385x257d96 blockmask:mask_heads", "b3h4k2s300x400d64 blockmask:thd:mask_heads",
         "b3h2s300x400d64 blockmask:thd:used:causal_tl", "b2h2s300x400d64 blockmask:used:dropout0.2",
         "b1h2s400x300d64 blockmask:draw_hidden:dlse:sink:grads_qkvs", "b1h2s400x300d64 blockmask:draw_open",
         "b1h2s400d64 blockmask:draw_chunk:wl200:wr100", "b1h2s300x400d64 blockmask:bias_bhqk:grads_qkvb",
         "b2h2s300x400d64 blockmask:bias_1hqk:grads_qkvb:mask_heads",
         "b2h4k2s300x400d128 blockmask:intervals_two:mask_heads",
         "b1h4k2s500d64 blockmask:intervals_from:causal_br:det", "b2h2s300x400d64 blockmask:st_block_mask0,0,7,2",
         "b2h2s300x400d256 blockmask:acc_qkv:dq_f32:dk_f32:dv_f32",
         "b2h2s300x400d64 blockmask:qoff100:koff40:causal_tl", "b1h2s16x2100d64 blockmask", "b0h2s17d16 blockmask",
         "b1h2s2500x200d64 blockmask:mask_heads", "blockmask:delta_in:wl60:data_sd3",
         "b2h4k2s200x300d64 blockmask:biasu8_bhqk:wl200:shift2:scale0.3:lse_heads:delta_out:dlse:dropout0.2:map_flash2:"
         "boff2:hoff1:htotal64:qoff5:koff3:dq_f32:dk_f32:dv_f32:acc_qkv",
         "b2h3s200x140d64x40 "
         "blockmask:dropout0.3:map_mem_eff:pointer:alibi:softcap5:sink:grads_qkvs:used:thd:data_sd3:skew1",
         "fwd blockmask", "fwd b2h4k2s300x500d64 blockmask:mask_heads:intervals_two",
         "b1h4k2s300x500d192 blockmask:mask_heads", "b1h2s200x500d256 blockmask:mask_heads:det",
         "b3h4k2s200x300d136x200 blockmask:thd:intervals_two:causal_tl"),
     4},
    {"alibi", "-slope |i + shift - j|, slopes by head, by batch",
     ALTERNATIVES("alibi", "alibi:causal_br", "alibi:causal_tl", "b3h4k2s33x40d32 alibi:alibi_st8",
                  "b2h2s65x17d64 alibi:alibi_st2:thd", "alibi:thd", "alibi:qoff9:koff4", "alibi:used",
                  "alibi:qoff33554435:koff33554432", ALIBI_FAR, "b1h4s300x400d64 alibi:wl40:wr60",
                  "b1h4k2s200x300d128 alibi", "b1h4s300d64 alibi:causal_br:qoff3", "b1h2s130d128 alibi:wl0:shift1",
                  "b1h4k2s300x200d128 alibi:causal_br", "b2h3s258x290d64 alibi:wl40:wr7:det",
                  "b1h4k2s130x170d256 alibi:causal_br", "b2h2s70x210d192x128 alibi:thd:det"),
     4},
    {"alibi_column", "slope * j, FlashAttention's causal form",
     ALTERNATIVES("alibi:alibi_col:causal_br", "alibi:alibi_col:causal_tl", "alibi:alibi_col:thd:causal_br",
                  "alibi:alibi_col:alibi_st8", "b1h4s200x300d64 alibi:alibi_col:koff7",
                  "b1h4s130x200d128 alibi:alibi_col:koff-20000000"),
     4},
    {"softcap", "c tanh(x / c) and its derivative, alone and with other features",
     ALTERNATIVES("softcap1", "softcap5", "softcap30", "softcap2:causal_br", "softcap3:bias_bhqk:grads_qkvb",
                  "softcap4:data_sd3", "softcap0.02", "softcap100000:causal_br", "b1h2s300x400d64 softcap30:causal_br",
                  "b1h2s200x300d64 softcap1", "b1h4k2s200x300d128 softcap2:wl50:wr90", "b1h2s130x140d128 softcap30",
                  "b1h4k2s300x200d128 softcap30:causal_br:det", "b2h3s258x290d64 softcap8:wl40:wr7:data_sd3",
                  "b1h4k2s130x170d256 softcap50:causal_br:det", "b1h2s97x210d192 softcap30:used",
                  "b1h4k2s130x200d128 softcap5:alibi:causal_br", "b2h2s65x170d64 softcap3:alibi:alibi_col:thd:used",
                  "b1h4k2s97x150d64 softcap2:bias_bhqk:grads_qkvb", "b1h2s130x97d128 softcap4:biasf32_b1qk:grads_qkvb",
                  "b2h2k1s66x130d96 softcap2:bias_bhqk:dbias_f32:acc_b:grads_qkvb",
                  "b1h2s97x260d64 softcap9:biasu8_b1qk", "b2h2s70x140d128 softcap6:bias_1hqk:grads_qkvb:dropout0.2:det",
                  "b1h4k2s130x300d128 softcap5:intervals_two:dk_f32:dv_f32:acc_kv:mask_heads",
                  "b1h2s150x300d64 softcap8:blockmask:alibi:det", "b1h2s97x130d192 softcap4:bias_bhqk:grads_qkvb:wl60",
                  "b1h2k1s90x140d256 softcap7:alibi:dropout0.3:map_flash2:causal_tl",
                  "b2h2s70x100d192x128 softcap5:intervals_from:bias_1hqk:thd:grads_qkvb",
                  "b1h2s65x97d32 softcap1:bias_bhqk:dropout0.2:map_mem_eff:alibi:grads_qkvb:data_sd3",
                  "b1h2s40x60d64 softcap2:alibi:data_denormal", "b1h2s40x60d128 softcap2:alibi:data_small",
                  "b1h2s70x290d64 softcap2:intervals_two:data_denormal",
                  "b1h2s40x60d64 softcap2:alibi:data_denormal:det",
                  "b1h2s70x290d128 softcap2:intervals_two:data_small:det",
                  "b1h2k1s40x60d192 softcap2:bias_bhqk:grads_qkvb:data_denormal"),
     4},
    {"sink", "sink logit and dSink; -inf switches one off; rows without keys keep their term",
     ALTERNATIVES("sink", "sink:grads_qkvs", "sink:grads_s", "sink:causal_br:grads_qkvs", "sink:dlse:grads_qkvs",
                  "sink:thd:grads_qkvs", "sink:used:dlse:grads_qkvs", "b2h3s40x11d32 sink:causal_br:dlse:grads_s"),
     4},
    {"dlse", "gradient through LSE",
     ALTERNATIVES("dlse", "dlse:causal_br", "dlse:thd", "dlse:delta_out", "dlse:lse_heads", "dlse:st_dlse0,0,0"), 4},
    {"gqa", "query heads share key/value heads",
     ALTERNATIVES("b2h4k2s33x70d64 ", "b1h8k1s20x40d32 causal_br", "b2h6k3s65x64d16 thd",
                  "b1h6k2s64x65d128 dk_f32:dv_f32", "b3h5k1s31x33d40 causal_tl", "b1h16k4s17x18d24 ",
                  "b2h4k1s50x70d48 bhsd:bias_1hqk:grads_qkvb"),
     5},
    {"parts", "long work tiles of few heads, which GPUs take in parts",
     ALTERNATIVES("b1h8k1s700x300d64 causal_br", "b1h6k2s600x300d128 det:causal_tl", "b1h1s1500x300d64 ",
                  "b1h1s1300x260d128 used:wl300:wr200", "b2h4k1s500x200d96 thd:dk_f32:acc_k",
                  "b1h8k2s700x190d128 det:thd:used:seqs_full", "b1h4k1s800x130d64 used:dv_f32:acc_v:causal_br",
                  "b1h7k1s500x200d40x24 grads_kv", "b1h2k1s900x150d100 bhsd:grads_qk:det",
                  "b1h1s1100x129d128 dk_f32:dv_f32:det", "b1h8k1s300d64 sink:dlse:grads_qkvs", "b1h4k1s640x192d64 ",
                  "b2h4k1s500x200d96 thd", "b1h8k2s700x190d128 thd:used:causal_br", "b1h4k2s700x300d64x40 grads_qk",
                  "b1h8k1s600x200d128 data_denormal_dout", "b1h4k2s700x300d64 data_denormal:causal_br",
                  "b1h8k2s700x300d256 causal_br", "b1h8k1s600x200d192x128 det:causal_br",
                  "b2h4k1s500x200d192 thd:dk_f32:acc_k", "b1h4k1s800x130d256 used:dv_f32:acc_v:det",
                  "b1h1s40000x40d192 dk_f32:dv_f32", "b1h1s40000x40d192x128 dk_f32:dv_f32:causal_tl",
                  "b1h8k2s700x190d192x128 thd:used:grads_kv", "b1h8k1s600x200d192 data_denormal_dout"),
     4},
    {"parts_features", "such work tiles with features of single pairs",
     ALTERNATIVES("b1h8k1s700x300d64 softcap30:causal_br", "b1h8k2s600x300d128 softcap9:det",
                  "b2h6k2s600x200d96 alibi:thd", "b1h8k1s700x300d64 alibi:det:causal_br",
                  "b1h8k2s600x300d128 dropout0.2:causal_br", "b2h4k1s500x200d64 dropout0.2:thd:used:det",
                  "b1h8k2s600x300d128 bias_b1qk", "b1h8k1s700x300d64 biasu8_1hqk:det:grads_kv",
                  "b1h8k2s600x200d256 softcap9:causal_br", "b1h8k1s500x200d192 softcap9:det",
                  "b1h8k2s600x300d192x128 alibi:alibi_col", "b1h8k1s700x200d192x128 softcap9:thd:used",
                  "b1h8k2s600x200d256 dropout0.2:det:grads_kv", "b1h8k1s500x200d192 dropout0.2:dk_f32:dv_f32",
                  "b1h8k2s600x200d192 bias_bhqk:det", "b2h4k1s500x200d256 biasu8_b1qk:thd",
                  "b1h8k1s640x384d64 softcap9:causal_br", "b1h4k1s512x256d128 dropout0.2"),
     4},
    {"few_rows", "few query rows and many keys, which GPUs take as one block",
     ALTERNATIVES("b1h2s1x2100d64 ", "b1h4k1s16x4099d128 causal_br", "b1h2s64x4160d64 causal_tl:det",
                  "b1h8k2s7x4200d128 used:det", "b1h2k1s8x2049d96x72 wl900:wr30", "b1h1s33x4096d128 dq_f32:acc_q",
                  "b1h16k1s4x4100d64 bhsd:causal_br", "b2h2s1x2048d128 lens_kv:dlse:sink:grads_qkvs",
                  "b1h2s16x2100d40 grads_q:delta_in", "b1h1s64x4100d128 grads_kv:data_inf_lse",
                  "b1h2s40x4150d64 data_dead_rows:causal_br", "b1h1s8x2100d128 data_denormal"),
     4},
    {"dropout", "philox: same mask in forward, backward and dump",
     ALTERNATIVES("dropout0.1", "dropout0.5:dseed123", "dropout0.9:dseed9:doff40", "dropout0.2:causal_br",
                  "dropout0.3:thd", "dropout0.25:qoff5:koff7", "dropout0.1:boff70001:hoff2:htotal977",
                  "dropout0.1:pointer:dseed77:doff3", "dropout0.1:dseed4611686018427387903:doff4611686018427387000",
                  "dropout0.15:used:bias_bhqk:grads_qkvb", PHILOX_KEPT, PHILOX_DROPPED, "b1h4k2s300x400d64 dropout0.2",
                  "b1h4k2s200x300d128 dropout0.3:causal_br:qoff8", "b1h4k2s300x200d128 dropout0.2:causal_br:det",
                  "b2h3s258x290d64 dropout0.3:thd:wl90:qoff5", "b1h4k2s130x170d192 dropout0.2:causal_br",
                  "b2h2s70x210d256 dropout0.3:thd:wl90:qoff8", "b1h2s129x131d256 dropout0.2:qoff5:koff7:det",
                  "b2h2s98x97d192x128 dropout0.3:used", "b1h2s2150x140d64 dropout0.2:dk_f32:dv_f32:causal_br",
                  "b1h4k2s200x150d128 dropout0.2:dk_f32:dv_f32:acc_kv:det",
                  "b1h2s130x150d192 dropout0.2:grads_qk:dk_f32"),
     4},
    {"dropout_features", "dropout with ALiBi or a bias, whose kernels are theirs on some GPUs",
     ALTERNATIVES(
         "b1h4k2s200x300d128 dropout0.2:alibi:causal_br", "b2h2s130x97d64 dropout0.3:alibi:map_flash2:det",
         "b2h2s130x97d64 dropout0.2:alibi:alibi_col:thd:used", "b1h2s130x140d96 dropout0.2:alibi:map_mem_eff",
         "b1h4k2s200x300d128 dropout0.2:bias_b1qk", "b2h2s130x97d64 dropout0.3:bias_1hqk:map_flash2:det",
         "b2h2s130x97d64 dropout0.2:biasu8_b1qk:thd:used", "b1h2s130x140d96 dropout0.2:bias_bhqk:map_mem_eff",
         "b2h2s70x200d128 dropout0.1:bias_1hqk:grads_qkvb", "b2h2s130x270d64 dropout0.2:biasu8_11qk:data_inf_keys",
         "b1h2s150x130d128 dropout0.2:bias_bhqk:data_dead_rows:causal_tl", "b1h2s150x130d64 dropout0.2:bias_1hqk:gap3",
         "b1h2s128x256d64 dropout0.2:alibi", "b1h2k1s256x128d128 dropout0.2:bias_11qk",
         "b1h2s130x200d64 dropout0.2:softcap5:causal_br", "b2h2k1s130x200d128 dropout0.3:softcap20:map_flash2",
         "b1h2s130x200d32 dropout0.2:alibi:wl50", "b1h2s130x200d96 dropout0.2:softcap9:map_mem_eff"),
     4},
    {"dropout_mem_eff", "PyTorch's memory-efficient map",
     ALTERNATIVES("dropout0.1:map_mem_eff", "dropout0.6:map_mem_eff:dseed5:doff12",
                  "dropout0.3:map_mem_eff:thd:causal_br", "dropout0.2:map_mem_eff:pointer:dseed6:doff8", MEM_EFF_KEPT,
                  MEM_EFF_DROPPED, "b1h4k2s300x200d128 dropout0.2:map_mem_eff:causal_br",
                  "b2h3s258x290d64 dropout0.3:map_mem_eff:det", "b2h2s98x290d64 dropout0.3:map_mem_eff:thd:causal_br",
                  "b1h2k1s130x172d192 dropout0.2:map_mem_eff:causal_tl", "b1h2s98x97d256 dropout0.2:map_mem_eff:det",
                  "b2h2s70x90d256 dropout0.3:map_mem_eff:thd"),
     4},
    {"dropout_flash2", "FlashAttention-2's map",
     ALTERNATIVES("dropout0.1:map_flash2", "dropout0.6:map_flash2:dseed5:doff12", "dropout0.3:map_flash2:thd:causal_br",
                  "dropout0.17:map_flash2:boff300007:hoff2:htotal977", "b1h4k2s300x400d64 dropout0.2:map_flash2",
                  "b1h4k2s200x300d128 dropout0.3:map_flash2:causal_br",
                  "b1h4k2s300x200d128 dropout0.2:map_flash2:causal_br", "b2h3s258x290d64 dropout0.3:map_flash2:thd:det",
                  "b2h2s98x290d64 dropout0.3:map_flash2:thd:wl90", "b1h4k2s130x170d256 dropout0.2:map_flash2:causal_br",
                  "b2h2s98x197d192 dropout0.3:map_flash2:thd:det"),
     4},
    {"deterministic", "bitwise the same with every feature",
     ALTERNATIVES("det", "det:causal_br", "det:dropout0.1", "det:bias_11qk:grads_qkvb", "det:thd",
                  "det:sink:grads_qkvs", "nodet", "b2h4k2s60x500d128 det", "b1h2s700d64 det:causal_tl",
                  "b3h2s300x400d96 det:thd:used:causal_br", "b1h2s100x600d128 det:wl3:wr200",
                  "b2h4k2s300x500d64 det:causal_br", "b3h4k2s500x300d128 det:thd", "b1h2s200x400d192 det:causal_tl",
                  "b1h2s200x400d256 det"),
     4},
    {"outputs", "any subset of the gradients; nothing else is written",
     ALTERNATIVES("grads_q", "grads_k", "grads_v", "grads_qk", "grads_qv", "grads_kv", "grads_b:bias_bhqk",
                  "grads_qs:sink", "grads_vs:sink:causal_br", "grads_kb:bias_1hqk", "grads_bs:sink:bias_11qk",
                  "grads_qkvbs:sink:bias_bhqk"),
     3},
    {"grad_dtype", "f32 gradients of 16-bit inputs",
     ALTERNATIVES("dq_f32", "dk_f32", "dv_f32", "dq_f32:dk_f32:dv_f32", "bias_bhqk:dbias_f32:grads_qkvb", "dk_f32:qkv",
                  "dq_f32:dk_f32:dv_f32:thd:causal_br", "dv_f32:det", "b1h1s6000x33d16 data_positive:dk_f32:dv_f32",
                  "b1h2k1s3000x9d40 data_positive:dv_f32:acc_v:gap3", "b1h4k1s4096x33d128 data_positive:dk_f32:dv_f32"),
     4},
    {"accumulate", "added to what is there, nothing zeroed",
     ALTERNATIVES("acc_q:dq_f32", "acc_kv:dk_f32:dv_f32", "acc_qkv:dq_f32:dk_f32:dv_f32",
                  "acc_qkvbs:grads_qkvbs:dq_f32:dk_f32:dv_f32:biasf32_1hqk:sink", "acc_b:grads_qb:bias_bhqk:dbias_f32",
                  "acc_qk:dq_f32:dk_f32:thd:used", "acc_qkv:dq_f32:dk_f32:dv_f32:causal_br:det"),
     4},
    {"offsets", "global positions, by value and by pointer",
     ALTERNATIVES("qoff7:causal_tl", "koff5:causal_tl", "qoff40:koff33:wl9", "qoff3:koff50:causal_br",
                  "pointer:causal_br", "pointer:thd:wl11:wr2", "qoff-20:koff-30:causal_tl:alibi",
                  "qoff1000000007:koff1000000000:causal_tl"),
     4},
    {"shard", "batch_offset, head_offset, heads_total",
     ALTERNATIVES("boff3:dropout0.3", "hoff4:htotal64:dropout0.2", "boff70001:hoff50:htotal977:dropout0.5:map_mem_eff",
                  "boff7:hoff1:htotal9:alibi:sink:grads_qkvs", "boff2:hoff1:htotal8:qoff5:koff3:causal_tl",
                  "boff2:hoff1:htotal9:pointer:causal_br"),
     3},
    {"lse_layout", "[B,H,S], [B,S,H], packed [H,T], [T,H], local rows",
     ALTERNATIVES("lse_heads", "lse_heads:gap2", "thd:lse_heads", "thd:lse_local", "thdq:lse_local:dlse",
                  "thd:lse_heads:delta_out", "lse_heads:delta_in"),
     4},
    {"delta", "given, or written on request",
     ALTERNATIVES("delta_in", "delta_in:causal_br", "delta_in:wl0:wr0", "delta_in:sink:grads_qkvs", "delta_in:thd",
                  "delta_out", "delta_out:dlse", "delta_out:causal_br:used"),
     4},
    {"data", "standard deviation 3, one-hot V, -65504 and -inf on some keys, subnormals, LSE of 0 and of inf",
     ALTERNATIVES("data_sd3", "data_sd3:causal_br", "data_onehot", "data_onehot:causal_tl",
                  "data_low_keys:biasf32_bhqk", "data_low_keys:bias_b11k:grads_qkvb",
                  "data_inf_keys:bias_bhqk:grads_qkvb", "data_inf_keys:biasf32_1hqk:sink:dlse:grads_qkvbs",
                  "data_inf_keys:bias_111k", "data_denormal", "data_denormal:causal_br", "data_denormal_q:causal_tl",
                  "data_denormal_dout", "data_small:causal_br", "b1h2k1s61x200d64 data_denormal_q",
                  "b1h2s260x300d64 data_denormal_q:causal_tl", "b1h2s97x65d128 data_denormal_dout:causal_br",
                  "b2h2s45x300d128 data_denormal_dout", "b2h2s45x300d64 data_denormal_dout:causal_tl",
                  "b2h2s70x210d128 data_small", "b1h2s33x97d64 data_small:causal_br:dlse",
                  "b1h2s70x290d64 data_denormal_dout:scale1000", "b1h2s97x165d256 data_denormal_dout:scale-300:det",
                  "b3h2s90x100d64 data_denormal:thd", "b1h2k1s200x97d64 data_denormal:det",
                  "b1h2k1s70x300d128 data_small:det:wl40:wr9", "b1h2s40x150d192x128 data_denormal:det",
                  "data_zero_lse:wl0:wr0", "data_inf_lse", "data_inf_lse:causal_tl:bias_1hqk:grads_qkvb",
                  "b2h3s33x40d32 data_inf_lse:sink:dlse:grads_qkvs", "data_dead_rows", "data_dead_rows:causal_tl:dlse",
                  "data_dead_rows:causal_br:delta_in:thd", "b1h4k2s200x150d64 data_dead_rows:wl40:wr9",
                  "b2h2s130x260d128 data_dead_rows:dlse", "data_dead_rows:bias_1hqk:grads_qkvb:dlse",
                  "data_dead_rows:dropout0.2:softcap30", "b2h3s33x40d32 data_dead_rows:sink:dlse:grads_qkvs",
                  "data_dead_rows:det:alibi"),
     4},
    {"nan_lse", "an LSE of NaN reaches its row of dQ and the keys that the row sees, and no others",
     ALTERNATIVES("b1h4k2s80x90d64 data_nan_lse:wl6:wr3", "b2h2s150x130d128 data_nan_lse:causal_tl",
                  "b2h2s150x130d128 data_nan_lse:causal_tl:softcap5", "b2h2s150x130d64 data_nan_lse:wl6:wr3:alibi",
                  "data_nan_lse:wl6:wr3:bias_1hqk:grads_qkvb:dlse", "b2h3s70x40d32 data_nan_lse:thd:wl2:wr2",
                  "b2h3s33x40d32 data_nan_lse:causal_tl:sink:grads_qkvs"),
     4},
    {"beyond_range", "all inputs 1000, rows of -65504 and -1e9: finite, and exact zeros",
     ALTERNATIVES("data_huge", "data_huge:causal_br", "data_huge:bias_bhqk:grads_qkvb",
                  "data_row_65504:bias_bhqk:grads_qkvb", "data_row_65504:biasf32_1hqk:causal_br",
                  "data_row_1e9:biasf32_bhqk:grads_qkvb", "data_row_1e9:biasf32_11qk:sink:grads_qkvs",
                  "b2h2s33x17d32 data_huge:causal_br:sink:grads_qkvs"),
     3},
    {"forward", "out, LSE (or none) and the dropout mask",
     ALTERNATIVES("fwd", "fwd causal_br", "fwd thd:causal_br", "fwd bias_1hqk:softcap8", "fwd sink:alibi",
                  "fwd dropout0.2", "fwd bhsd:used", "fwd lse_heads:wl20"),
     4},
    {"bugs",
     "what went wrong at the peers: D 16 with S 1, one row beyond a tile, causal with Sq > Sk, bias rows of "
     "odd length",
     ALTERNATIVES("b5h2s1d16 ", "b5h2s1d16 causal_br:dropout0.1", "b1h2s129x128d64 causal_br",
                  "b1h2s128x129d64 causal_br", "b2h2s128x64d64 causal_tl:bias_bhqk:grads_qkvb", "b1h1s257x255d32 ",
                  "b2h2s65x63d40 bias_bhqk:grads_qkvb", "b3h2s64x130d64 thd:used:causal_br",
                  "b2h2s130x65d64 causal_br:bias_1hqk:grads_b", "b300h3s2x3d8 causal_br", "b66000h1s2x3d8 causal_br",
                  "b2h4k2s33x17d64 qkv:thd:det:dq_f32"),
     3},
    {"f64", "attention in f64, every feature: the CPU backend alone",
     ALTERNATIVES("f64", "f64 grads_qkv:scale0.3", "f64 scale0", "f64 bhsd", "f64 gap3:causal_tl", "f64 qkv:causal_br",
                  "f64 skew1:wl7:wr3", "f64 thd:causal_br", "f64 thd:used:gap3", "f64 used:causal_br", "f64 lens_zero",
                  "f64 lens_kv:causal_tl:shift2", "f64 wl2:shift-200", "f64 d1", "f64 d192x128", "f64 d5x256",
                  "f64 d255", "f64 b0h2s17d16 ", "f64 b2h2s0x9d16 bias_bhqk:sink:grads_qkvbs",
                  "f64 b2h2s9x0d16 sink:dlse:grads_qkvs", "f64 b3h4k2s0x65d64 thd", "f64 b2h2s97x20d32 causal_br",
                  "f64 b2h4k2s33x70d64 ", "f64 bias_bhqk:grads_qkvb", "f64 bias_1hqk:grads_qkvb",
                  "f64 bias_11qk:thd:used:grads_qkvb", "f64 bias_b11k:grads_qkvb:causal_tl", "f64 bias_11q1:grads_b",
                  "f64 bias_1111:grads_qkvb", "f64 bias_bhqk:thd:wl3:wr3:grads_qkvb", "f64 alibi:causal_br:qoff9:koff4",
                  "f64 alibi:alibi_col:thd", "f64 b3h4k2s33x40d32 alibi:alibi_st8", "f64 softcap5",
                  "f64 softcap3:bias_bhqk:grads_qkvb", "f64 sink:grads_qkvs:dlse", "f64 sink:thd:used:dlse:grads_s",
                  "f64 dlse:delta_out:lse_heads", "f64 thd:lse_local:delta_out", "f64 delta_in:causal_br",
                  "f64 dropout0.1", "f64 dropout0.3:thd:pointer:dseed77:doff3", "f64 dropout0.25:map_mem_eff",
                  "f64 dropout0.17:map_flash2:boff1:hoff2:htotal24", "f64 det:wl16:wr1", "f64 grads_q:used",
                  "f64 grads_v", "f64 grads_k:thd", "f64 acc_qkv", "f64 acc_qkvbs:grads_qkvbs:bias_1hqk:sink",
                  "f64 acc_b:grads_qb:bias_bhqk", "f64 acc_qk:thd:used", "f64 data_sd3", "f64 data_onehot",
                  "f64 data_low_keys:bias_b11k:grads_qkvb", "f64 data_inf_keys:bias_bhqk:grads_qkvb",
                  "f64 data_denormal", "f64 data_denormal_dout:causal_br", "f64 data_small:causal_br",
                  "f64 data_zero_lse:wl0:wr0", "f64 data_inf_lse:causal_tl:bias_1hqk:grads_qkvb",
                  "f64 data_dead_rows:sink:dlse:grads_qkvs", "f64 data_huge:bias_bhqk:grads_qkvb",
                  "f64 data_row_1e9:bias_bhqk:grads_qkvb", "f64 fwd thd:causal_br", "f64 fwd sink:alibi",
                  "f64 fwd dropout0.2", "f64 fwd bhsd:used", "f64 fwd bias_1hqk:softcap8", "f64 biasu8_b11k",
                  "f64 biasu8_bhqk:causal_br:sink:grads_qkvs", "f64 biasu8_1hqk:thd", "f64 fwd biasu8_1hqk",
                  "f64 intervals_two:mask_heads", "f64 intervals_from:causal_br:draw_documents:draw9:thd",
                  "f64 b2h4k2s90x200d40 intervals_range_below:mask_heads",
                  "f64 b1h2s100x150d16 intervals_two:bias_bhqk:grads_qkvb",
                  "f64 b1h2s100x150d16 intervals_two:bias_1hqk:grads_qkvb:dropout0.2",
                  "f64 intervals_range:draw_dead:sink:grads_qkvs", "f64 intervals_from_below:acc_qkv:draw_hidden",
                  "f64 b2h4k2s200x300d8 blockmask:mask_heads", "f64 fwd b1h2s200x300d16 blockmask:intervals_two",
                  "f64 fwd intervals_two:mask_heads"),
     2},
    {"jagged_pointwise", "gelu, gelu_tanh, silu: storages, unused rows, empty components, alignment",
     conform_jagged_pointwise, 12},
    {"jagged_threshold", "every element type; thresholds above and below 0", conform_jagged_threshold, 12},
    {"jagged_softmax", "along outer, ragged and inner, whole and in part", conform_jagged_softmax, 12},
    {"jagged_log_softmax", "along outer, ragged and inner, whole and in part", conform_jagged_log_softmax, 12},
    {"jagged_sum", "gradients spread along each dimension, every element type", conform_jagged_sum, 12},
    {"jagged_select", "a slice of each dimension and a component, every element type", conform_jagged_select, 12},
    {"jagged_layer_norm", "dX, dGamma, dBeta", conform_jagged_layer_norm, 12},
    {"jagged_rms_norm", "dX, dGamma", conform_jagged_rms_norm, 12},
    {"jagged_reshape", "between component shapes and storages, every element type", conform_jagged_reshape, 12},
    {"jagged_padded", "to and from padded, longer and shorter than the components", conform_jagged_padded, 12},
    {"jagged_linear", "dX, dW, dbias over the rows of all components", conform_jagged_linear, 12},
    {"jagged_matmul", "each extent constant or ragged, storages, transposed, bases", conform_jagged_matmul, 12},
    {"jagged_attention", "nested q, k, v with offsets of both types", conform_jagged_attention, 3},
    {"pairs", "every pair of levels of 23 factors at once", NULL, 4},
};
const size_t conform_row_count = sizeof conform_rows / sizeof *conform_rows;

const char *conform_row_name(int row) {
    return row == CONFORM_ROW_LARGE ? "large" : row < 0 ? "given" : conform_rows[row].name;
}

static int is_about_size(const char *option) {
    const char *sequence = option[0] == 'b' ? strchr(option, 's') : NULL;
    return sequence && (atoi(option + 1) >= BATCH_ALONE || atoi(sequence + 1) >= SEQUENCE_ALONE);
}

/* A further round's layout, so that every feature meets every one; "" where the alternative has its own. */
static const char *layout_of(const char *option, unsigned turn) {
    static const char *const layouts[] = {"thd", "bhsd", "qkv", "gap3", "skew1"};
    static const char *const own[] = {"thd", "bhsd", "qkv", "gap", "skew", "st_"};
    for (size_t i = 0; i < sizeof own / sizeof *own; ++i)
        if (strstr(option, own[i])) return "";
    if (is_about_size(option)) return "";
    return layouts[turn % (sizeof layouts / sizeof *layouts)];
}

/* One problem of a row: the alternative's own sizes, or sizes that rotate with the round. In further rounds
 * (`layout` not null) head dims rotate where the sizes are its own, too, unless the batch is what it is
 * about. */
static void compose(const char *option, unsigned round, unsigned which, const char *layout, char *line) {
    static const char *const dtypes[] = {"bf16", "f32", "f16"};
    static const char *const heads[] = {"b2h2", "b1h4k2", "b2h3k1", "b3h1", "b1h2k1"};
    static const int sizes[] = {33, 64, 17, 65, 1, 128, 31, 16, 63, 129, 32, 15, 127};
    static const char *const dims[] = {"d64", "d32", "d40",      "d128", "d16",  "d96", "d33",
                                       "d80", "d17", "d192x128", "d8",   "d127", "d3",  "d256"};
    char own_sizes[64] = "", own_dim[16] = "", tokens[272] = "";
    int f64 = !strncmp(option, "f64", 3);
    if (f64) option += option[3] ? 4 : 3;
    int forward = !strncmp(option, "fwd", 3);
    if (forward) option += option[3] ? 4 : 3;
    const char *op = forward ? "attn_fwd" : "attn_bwd", *space = strchr(option, ' ');
    if (option[0] == 'b' && option[1] >= '0' && option[1] <= '9')
        snprintf(own_sizes, sizeof own_sizes, "%.*s", (int)(space - option), option);
    else if (option[0] == 'd' && option[1] >= '0' && option[1] <= '9') snprintf(own_dim, sizeof own_dim, "%s", option);
    if (space) option = space + 1;
    if (!own_dim[0] && option[0]) snprintf(tokens, sizeof tokens, ":%s", option);
    if (layout && layout[0]) snprintf(tokens + strlen(tokens), 16, ":%s", layout);
    char *dim = own_sizes[0] ? strrchr(own_sizes, 'd') : NULL;
    if (layout && dim && !is_about_size(own_sizes))
        snprintf(dim, sizeof own_sizes - (size_t)(dim - own_sizes), "%s", dims[(round + which * 5) % 14]);
    unsigned mix = round * 5 + which * 3;
    if (own_sizes[0])
        snprintf(line, CONFORM_LINE_MAX, "%s:%s:%s%s", op, f64 ? "f64" : dtypes[round % 3], own_sizes, tokens);
    else
        snprintf(line, CONFORM_LINE_MAX, "%s:%s:%ss%dx%d%s%s", op, f64 ? "f64" : dtypes[(round + which) % 3],
                 heads[(mix + round) % 5], sizes[mix % 13], sizes[(round * 7 + which * 4 + 3) % 13],
                 own_dim[0] ? own_dim : dims[(round * 3 + which * 5) % 14], tokens);
}

int conform_list_row(conform_list *list, int row, double scale) {
    const conform_row *r = &conform_rows[row];
    unsigned rounds = (unsigned)((double)r->rounds * scale + 0.5);
    if (!rounds) rounds = 1;
    char line[CONFORM_LINE_MAX], canonical[CONFORM_LINE_MAX];
    if (!r->options) {
        for (unsigned round = 0; round < rounds; ++round)
            if (!conform_list_pairs(list, row, round)) return 0;
        return 1;
    }
    for (unsigned round = 0; round < rounds; ++round)
        for (unsigned which = 0; r->options[which]; ++which) {
            stw_problem problem;
            if (stw_problem_is_jagged(r->options[which])) {
                conform_jagged_line(r->options[which], round, line);
                if (!conform_list_add(list, row, line)) return 0;
                continue;
            }
            int further = round >= (unsigned)r->rounds;
            const char *layout = further ? layout_of(r->options[which], round + 2 * which) : NULL;
            compose(r->options[which], round, which, layout, line);
            if (further && stw_problem_parse(line, &problem)) /* not with this alternative */
                compose(r->options[which], round, which, "", line);
            if (stw_problem_parse(line, &problem)) {
                stw_tool_error("conform", line, "%s", stw_tool_last_error());
                return 0;
            }
            stw_problem_print(&problem, canonical, sizeof canonical);
            if (!conform_list_add(list, row, canonical)) return 0;
        }
    return 1;
}

int conform_is_wanted(const conform_case *c, const char *const *filters, int count) {
    char text[CONFORM_LINE_MAX + 64], pattern[300];
    snprintf(text, sizeof text, "%s %s", conform_row_name(c->row), c->line);
    for (int i = 0; i < count; ++i) {
        int without = *filters[i] == '!';
        snprintf(pattern, sizeof pattern, "*%.280s*", filters[i] + without);
        if ((fnmatch(pattern, text, 0) != 0) != without) return 0;
    }
    return 1;
}

void conform_print_rows(const conform_list *list) {
    for (size_t row = 0; row < conform_row_count; ++row) {
        size_t count = 0;
        for (size_t i = 0; i < list->count; ++i) count += list->cases[i].row == (int)row;
        printf("%-16s %5zu  %s\n", conform_rows[row].name, count, conform_rows[row].what);
    }
    printf("%zu distinct problem%s\n", list->count, STW_TOOL_S(list->count));
}

void conform_print_problems(const conform_list *list) {
    for (size_t i = 0; i < list->count; ++i)
        printf("%s %s\n", conform_row_name(list->cases[i].row), list->cases[i].line);
}
