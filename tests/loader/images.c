/* SPDX-License-Identifier: MIT
 *
 * Bytes of the images of images.def, laid out as the build does: symbol_begin up to symbol_end. The hashes
 * there are FNV-1a of "sm80 cubin" and "sm90 cubin" (computed apart), of nothing, and of "foobar" (the
 * published vector). */
#define IMAGE_BYTES(symbol, bytes)                                                                                     \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".globl " #symbol "_begin\n.globl " #symbol "_end\n" #symbol "_begin: .ascii \"" bytes "\"\n" #symbol      \
            "_end:\n"                                                                                                  \
            ".byte 255\n.popsection\n")

/* clang-format off */
IMAGE_BYTES(test_sm80, "sm80 cubin");
IMAGE_BYTES(test_ptx, "");
IMAGE_BYTES(test_sm90, "sm90 cubin");
IMAGE_BYTES(test_gfx942, "foobar");
