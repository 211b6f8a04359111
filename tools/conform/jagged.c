/* SPDX-License-Identifier: MIT
 *
 * The alternatives of the conformance rows of jagged operations, and the lines made from them: every
 * alternative with every element type (`%`), in turn with every pattern of lengths and both types of offsets.
 */
#include "conform.h"

#include "tools/verify/jagged.h"

#include <stdio.h>
#include <string.h>

#define LIST(name, ...) const char *const conform_jagged_##name[] = {__VA_ARGS__, NULL}

/* One row of elements for each position, whatever the op: sizes, storage, unused rows, alignment, outputs. */
#define SHAPES(op)                                                                                           \
    op ":%:c7l60t200i33", op ":%:c9l40t150o3i8:used", op ":%:c5l200t500o2i5:jagged",                         \
        op ":%:c6l90t300o3i17:jagged:used", op ":%:c3l5t9", op ":%:c1l70t70i257:lens_full:full",             \
        op ":%:c0l9t20i4", op ":%:c5l0t40i9", op ":%:c4l50t120i12:dx_f32",                                   \
        op ":%:c4l50t120i13:dx_f32:acc_x:used", op ":%:c40l30t500:skew1", op ":%:c5l40t130i31:skew3:used",   \
        op ":%:c5l40t130i64:data_sd3", op ":%:c300l7t900i8:used", op ":%:c33l700t1500i16:lens_huge:used"

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

LIST(softmax, "jagged_softmax:%:c7l60t200i33:inner:data_tiny",
     "jagged_softmax:%:c7l60t200i33:ragged:data_tiny:used", "jagged_softmax:%:c7l60t200i33:inner",
     "jagged_softmax:%:c7l60t200i32:ragged", "jagged_softmax:%:c7l60t200o9i5:outer",
     "jagged_softmax:%:c6l50t150o3i40:inner:used", "jagged_softmax:%:c6l50t150o3i40:ragged:used",
     "jagged_softmax:%:c6l50t150o3i40:outer:used", "jagged_softmax:%:c6l50t150o3i40:inner:jagged",
     "jagged_softmax:%:c6l50t150o3i40:ragged:jagged:used",
     "jagged_softmax:%:c6l50t150o12i4:outer:jagged:used", "jagged_softmax:%:c5l30t90i60:inner:ds5",
     "jagged_softmax:%:c5l30t90i60:inner:ds5:da4:used", "jagged_softmax:%:c5l30t90i60:inner:ds6:da10",
     "jagged_softmax:%:c5l30t90o12i7:outer:ds3:da2:jagged",
     "jagged_softmax:%:c5l30t90o12i7:outer:ds3:da4:used", "jagged_softmax:%:c9l400t900:ragged",
     "jagged_softmax:%:c9l400t900:ragged:used:skew1", "jagged_softmax:%:c3l20t40i2000:inner",
     "jagged_softmax:%:c3l9t20i4099:inner:skew3", "jagged_softmax:%:c31l3000t4000i3:ragged:lens_huge",
     "jagged_softmax:%:c5l1200t2400i70:ragged:lens_huge:used",
     "jagged_softmax:%:c4l50t120i12:inner:dx_f32:acc_x:used",
     "jagged_softmax:%:c4l50t120i12:ragged:dx_f32:acc_x", "jagged_softmax:%:c0l9t20i4:ragged",
     "jagged_softmax:%:c4l0t20i4:ragged", "jagged_softmax:%:c7l60t200i1:inner",
     "jagged_softmax:%:c7l60t200i48:inner:data_sd3", "jagged_softmax:%:c1l200t200i64:ragged:lens_full:full");

LIST(sum, "jagged_sum:%:c7l60t200i33:inner", "jagged_sum:%:c7l60t200i33:ragged",
     "jagged_sum:%:c7l60t200o9i5:outer", "jagged_sum:%:c6l50t150o3i40:inner:used",
     "jagged_sum:%:c6l50t150o3i40:ragged:used:jagged", "jagged_sum:%:c6l50t150o12i4:outer:jagged:used",
     "jagged_sum:%:c5l30t90i60:inner:ds5:da4:used", "jagged_sum:%:c5l30t90o12i7:outer:ds3:da2:jagged",
     "jagged_sum:%:c9l400t900:ragged:used:skew1", "jagged_sum:%:c3l20t40i2000:inner",
     "jagged_sum:%:c31l3000t4000i3:ragged:lens_huge", "jagged_sum:%:c4l50t120i12:inner:dx_f32:acc_x:used",
     "jagged_sum:%:c4l50t120i12:ragged:dx_f32", "jagged_sum:%:c0l9t20i4:ragged",
     "jagged_sum:%:c4l0t20i4:ragged", "jagged_sum:%:c40l30t500i1:inner:skew1",
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
     "jagged_select:%:c6l50t150o3i40:inner:used:index17",
     "jagged_select:%:c6l50t150o12i4:outer:jagged:used:index11",
     "jagged_select:%:c5l30t90i60:inner:ds5:da4:used:index2",
     "jagged_select:%:c5l30t90o12i7:outer:ds3:da2:jagged:index-2",
     "jagged_select:%:c4l50t120i12:inner:dx_f32:acc_x:used:index5",
     "jagged_select:%:c4l30t120i12:ragged:dx_f32:lens_full:index3",
     "jagged_select:%:c5l40t130i31:skew3:inner:index30", "jagged_select:%:c0l9t20i4:inner:index1",
     "jagged_select:f64:c7l60t200i33:inner:used:index2", "jagged_select:i8:c7l60t200i33:component:index2",
     "jagged_select:u8:c6l30t180i33:ragged:index-3:lens_full",
     "jagged_select:i16:c7l60t200o4i9:outer:index1:used", "jagged_select:i32:c7l60t200i33:inner:index9",
     "jagged_select:i64:c7l60t200i33:inner:index9:used");

LIST(layer_norm, SHAPES("jagged_layer_norm"), "jagged_layer_norm:%:c7l60t200i33:gamma",
     "jagged_layer_norm:%:c7l60t200o3i65:gamma:used:jagged",
     "jagged_layer_norm:%:c7l60t200o3i65:gamma:used:weight_f32",
     "jagged_layer_norm:%:c5l60t200i64:ds16:gamma",
     "jagged_layer_norm:%:c5l60t200o2i60:ds20:gamma:used:inner",
     "jagged_layer_norm:%:c4l400t900i128:gamma:out_w:out_b", "jagged_layer_norm:%:c4l400t900i16:out_b",
     "jagged_layer_norm:%:c4l400t900i16:gamma:out_w:dweight_f32:acc_w",
     "jagged_layer_norm:%:c4l40t90i2048:gamma", "jagged_layer_norm:%:c4l40t90i5000:gamma:used:skew1",
     "jagged_layer_norm:%:c3l20t50i4000:gamma:used", "jagged_layer_norm:%:c3l9t20i9000:gamma:used",
     "jagged_layer_norm:%:c0l9t20i40:gamma", "jagged_layer_norm:%:c5l0t40i9:gamma:dbias_f32:acc_b:out_b",
     "jagged_layer_norm:%:c31l3000t4000i8:gamma:lens_huge:used",
     "jagged_layer_norm:%:c3l40t100i300:gamma:dx_f32:acc_x:dweight_f32:acc_w:dbias_f32:acc_b:out_x:out_w:out_"
     "b");

LIST(reshape, "jagged_reshape:%:c7l60t200:shape-1,12:gshape-1,3,4",
     "jagged_reshape:%:c7l60t200:shape4,-1,3:gshape-1,12",
     "jagged_reshape:%:c7l60t200:shape4,-1,3:gshape12,-1:used",
     "jagged_reshape:%:c7l60t200:shape-1,12:gshape2,-1,6:used:grad_jagged",
     "jagged_reshape:%:c7l60t200:shape3,2,-1,5:gshape6,-1,5:jagged:grad_jagged",
     "jagged_reshape:%:c7l60t200:shape3,2,-1,5:gshape6,-1,5:jagged:used",
     "jagged_reshape:%:c7l60t200:shape-1:gshape-1,1:skew1",
     "jagged_reshape:%:c7l60t200:shape2,-1,6:gshape-1,12:dx_f32",
     "jagged_reshape:%:c7l60t200:shape2,-1,6:gshape-1,12:dx_f32:acc_x:used",
     "jagged_reshape:%:c1l70t70:shape-1,257:gshape-1,257:lens_full:full",
     "jagged_reshape:%:c0l9t20:shape-1,4:gshape4,-1",
     "jagged_reshape:f64:c7l60t200:shape4,-1,3:gshape-1,12:used",
     "jagged_reshape:i8:c7l60t200:shape-1,12:gshape-1,3,4",
     "jagged_reshape:u8:c7l60t200:shape4,-1,3:gshape-1,12",
     "jagged_reshape:i16:c7l60t200:shape4,-1,3:gshape12,-1:jagged",
     "jagged_reshape:i32:c7l60t200:shape4,-1,3:gshape-1,12:used",
     "jagged_reshape:i64:c7l60t200:shape-1,12:gshape-1,3,4");

#define PADDED(op)                                                                                           \
    op ":%:c7l60t200i33p60", op ":%:c7l60t200i33p80:used", op ":%:c7l60t200i33p20",                          \
        op ":%:c7l60t200o2i40p20:used", op ":%:c7l60t200o3i7p61:jagged:used", op ":%:c7l60t200o3i7p59",      \
        op ":%:c5l40t130i31p40:skew3:used", op ":%:c4l50t120i12p50:dx_f32:acc_x:used",                       \
        op ":%:c4l50t120i12p64:dx_f32", op ":%:c9l40t90p7", op ":%:c4l20t50i4p0", op ":%:c0l9t20i4p5",       \
        op ":f64:c7l60t200i33p60:used", op ":i8:c7l60t200i33p70", op ":u8:c7l60t200o2i33p50:jagged",         \
        op ":i16:c7l60t200i33p60:used", op ":i32:c7l60t200i33p60", op ":i64:c7l60t200i33p66:used"
LIST(padded, PADDED("jagged_to_padded"), PADDED("jagged_from_padded"));

LIST(linear, "jagged_linear:%:c7l60t200i33f40:data_tiny", "jagged_linear:%:c7l60t200i64f96:data_tiny:used",
     "jagged_linear:%:c7l60t200i33f17", "jagged_linear:%:c7l60t200i64f96:used",
     "jagged_linear:%:c5l40t130o3i40f24:jagged:used", "jagged_linear:%:c5l40t130o2i16f200:used",
     "jagged_linear:%:c3l5t9i1f1", "jagged_linear:%:c1l130t130i128f64:lens_full:full",
     "jagged_linear:%:c4l300t700i48f40", "jagged_linear:%:c4l90t200i130f129:used:skew1",
     "jagged_linear:%:c4l50t120i32f48:out_x", "jagged_linear:%:c4l50t120i32f48:out_w:dweight_f32:acc_w:used",
     "jagged_linear:%:c4l50t120i32f48:out_b:dbias_f32:acc_b",
     "jagged_linear:%:c4l50t120i33f48:dx_f32:acc_x:out_x:out_b", "jagged_linear:%:c0l9t20i4f8",
     "jagged_linear:%:c5l0t40i9f3", "jagged_linear:%:c31l900t1300i24f16:lens_huge:used",
     "jagged_linear:%:c3l40t100i64f72:data_sd3", "jagged_linear:%:c3l1500t4300i8f9:used",
     "jagged_linear:%:c3l150t330i136f144:used:skew1");

LIST(matmul, "jagged_matmul:%:c7m60k33n40:tm200:data_tiny",
     "jagged_matmul:%:c7m33k60n17:tk200:ot:data_tiny:used", "jagged_matmul:%:c7m60k33n17:tm200",
     "jagged_matmul:%:c7m33k60n17:tk200", "jagged_matmul:%:c7m33k17n60:tn200", "jagged_matmul:%:c5m40k30n20",
     "jagged_matmul:%:c6m50k64n96:tm150:used", "jagged_matmul:%:c6m20k50n24:tk150:used",
     "jagged_matmul:%:c6m20k24n50:tn150:used", "jagged_matmul:%:c5o3m40k24n16:tm120:used",
     "jagged_matmul:%:c5o2m24k40n16:tk120:jagged:other_jagged:used",
     "jagged_matmul:%:c5o2m40k24n16:tm120:jagged:grad_jagged",
     "jagged_matmul:%:c5m24k16n40:tn120:other_jagged:grad_jagged:used",
     "jagged_matmul:%:c7m40k32n24:tm130:xt:ot:gt", "jagged_matmul:%:c7m33k40n24:tk130:xt:used",
     "jagged_matmul:%:c7m33k40n24:tk130:ot", "jagged_matmul:%:c7m33k24n40:tn130:gt:used",
     "jagged_matmul:%:c7o2m40k32n24:tm130:xt:jagged:gt:grad_jagged",
     "jagged_matmul:%:c6m40k24n30:tm120:tn90:gb9000", "jagged_matmul:%:c6m40k24n30:tm120:tn90:gb9000:used:gt",
     "jagged_matmul:%:c6m40k30n24:tm120:tk90:xb9000:used", "jagged_matmul:%:c6m24k40n30:tk120:tn90:ob9000:xt",
     "jagged_matmul:%:c5m20k16n12:tm60:tk50:tn40:xb4000:ob4000:gb4000:used",
     "jagged_matmul:%:c5o2m20k16n12:tm60:tk50:tn40:xb4000:ob4000:gb4000",
     "jagged_matmul:%:c6m40k24n30:tm120:xb6000:ob6000", "jagged_matmul:%:c7m60k33n17:tm200:out_x",
     "jagged_matmul:%:c7m60k33n17:tm200:out_o:used",
     "jagged_matmul:%:c7m60k33n17:tm200:dx_f32:dother_f32:acc_x:acc_o:used",
     "jagged_matmul:%:c7m60k33n17:tm200:skew1", "jagged_matmul:%:c4m130k140n150:tm300:used",
     "jagged_matmul:%:c0m9k4n5:tm20", "jagged_matmul:%:c4m0k4n5:tm20", "jagged_matmul:%:c4m9k0n5:tm20",
     "jagged_matmul:%:c4m9k5n0:tm20", "jagged_matmul:%:c21m700k24n16:tm1000:lens_huge",
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
        snprintf(line, CONFORM_LINE_MAX, "%.*s%s%s%s%s", (int)(slot - option), option, dtypes[round % 3],
                 slot + 1, pattern, index);
    else
        snprintf(line, CONFORM_LINE_MAX, "%s%s%s", option, pattern, index);
}
