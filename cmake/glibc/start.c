/* SPDX-License-Identifier: MIT */
/* The start of a program, which its link puts before __libc_start_main (--wrap). From glibc 2.34 on libc runs the
 * constructors of the main program, and the compiler's start code leaves them to it; before, they were an argument. */
typedef void constructor(int, char **, char **);

extern constructor *__preinit_array_start[], *__preinit_array_end[], *__init_array_start[], *__init_array_end[];
void _init(void);
int __real___libc_start_main(int (*)(int, char **, char **), int, char **, constructor *, void (*)(void),
                             void (*)(void), void *);
int __wrap___libc_start_main(int (*)(int, char **, char **), int, char **, constructor *, void (*)(void),
                             void (*)(void), void *);

static void construct(int argc, char **argv, char **environment) {
    for (constructor **at = __preinit_array_start; at < __preinit_array_end; ++at) (*at)(argc, argv, environment);
    _init();
    for (constructor **at = __init_array_start; at < __init_array_end; ++at) (*at)(argc, argv, environment);
}

int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, constructor *init,
                             void (*fini)(void), void (*loader_fini)(void), void *stack_end) {
    return __real___libc_start_main(main, argc, argv, init ? init : construct, fini, loader_fini, stack_end);
}
