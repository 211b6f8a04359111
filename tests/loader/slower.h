/* SPDX-License-Identifier: MIT */
#ifndef STW_TESTS_SLOWER_H
#define STW_TESTS_SLOWER_H

/* What the promise of 2 us is measured without: sanitizers, counted lines (CMakeLists.txt), and a build that
 * is not optimised. */
#if defined(SLOWER)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define SLOWER 10
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SLOWER 10
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

#endif
