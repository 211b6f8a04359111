// SPDX-License-Identifier: MIT
//
// STW_INIT from C++17: compiled by CTest (abi_init_cxx17), never run.
#include <sternway/sternway.h>

stw_attn_desc desc_of_cxx() {
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    stw_attn_args args = STW_INIT(stw_attn_args);
    stw_context_opts opts = STW_INIT(stw_context_opts);
    desc.batch = static_cast<int64_t>(args.struct_size + opts.struct_size);
    return desc;
}
