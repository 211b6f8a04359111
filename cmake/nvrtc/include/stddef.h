/* SPDX-License-Identifier: MIT
 *
 * What device code uses of <stddef.h>, for NVRTC, which comes without one. Found by cmake/nvrtc/nvcc.py alone. */
#ifndef STW_NVRTC_STDDEF_H
#define STW_NVRTC_STDDEF_H

typedef unsigned long size_t;
typedef long ptrdiff_t;
#ifndef NULL
#define NULL 0
#endif
/* The front end's own constant form of an address; it has no __builtin_offsetof. */
#define offsetof(type, member) __INTADDR__(&(((type *)0)->member))
/* Builtins of the host's compiler that nvcc has as well, in device code's words. */
#define __builtin_huge_valf() __int_as_float(0x7F800000)
#define __builtin_nanf(text)  __int_as_float(0x7FFFFFFF)

#endif
