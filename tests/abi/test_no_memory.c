/* SPDX-License-Identifier: MIT
 *
 * The library brought by dlopen, where a thread's first failure finds no memory: glibc ends the process when
 * thread-local data cannot be had. This program's own malloc fails when told to, the dynamic loader's calls of it
 * too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STW_E_INVALID = 1, THREADS = 24, OTHER_KEYS = 40 };

static atomic_int no_memory;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *malloc(size_t bytes) { return atomic_load(&no_memory) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return atomic_load(&no_memory) ? NULL : __libc_calloc(count, bytes); }

static int (*buffer_alloc)(void *context, size_t bytes, void **pointer_out);
static const char *(*last_error)(void);
static pthread_barrier_t all;

static const char *const told = "buffer_alloc: context is null";
static const char *const untold = "no memory for the text of this thread's error";

enum { TEXT_OTHER, TEXT_TOLD, TEXT_UNTOLD, TEXT_EMPTY };
typedef struct one_thread {
    int status, text_is; /* enum */
} one_thread;

static void *fail_without_memory(void *argument) {
    one_thread *self = argument;
    void *pointer;
    pthread_barrier_wait(&all); /* every thread is there */
    pthread_barrier_wait(&all); /* and the memory gone */
    self->status = buffer_alloc(NULL, 1, &pointer);
    const char *text = last_error();
    self->text_is = !strcmp(text, told) ? TEXT_TOLD : !strcmp(text, untold) ? TEXT_UNTOLD : !text[0] ? TEXT_EMPTY : 0;
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all); /* the library is gone */
    return NULL;
}

/* In a child, whose end tells: 0, or the first number of what was wrong. */
static int child(int later_key) {
    pthread_t threads[THREADS];
    one_thread each[THREADS];
    int told_of[4] = {0};
    pthread_key_t key;
    for (int i = 0; later_key && i < OTHER_KEYS; ++i)
        if (pthread_key_create(&key, NULL)) return 1;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 2;
    *(void **)&buffer_alloc = dlsym(library, "stw_buffer_alloc");
    *(void **)&last_error = dlsym(library, "stw_last_error");
    if (!buffer_alloc || !last_error || pthread_barrier_init(&all, NULL, THREADS + 1)) return 3;
    for (int i = 0; i < THREADS; ++i)
        if (pthread_create(&threads[i], NULL, fail_without_memory, &each[i])) return 4;
    pthread_barrier_wait(&all);
    atomic_store(&no_memory, 1);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    atomic_store(&no_memory, 0);
    if (dlclose(library) || dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD)) return 5;
    pthread_barrier_wait(&all);
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        if (each[i].status != STW_E_INVALID) return 6;
        ++told_of[each[i].text_is];
    }
    if (later_key) return told_of[TEXT_EMPTY] != THREADS ? 7 : 0;
    return told_of[TEXT_TOLD] != 16 || told_of[TEXT_UNTOLD] != THREADS - 16 ? 8 : 0;
}

/* Sixteen texts need no memory; with many keys in the process a thread's value of ours does, and it has no text. */
static void threads_that_fail_without_memory(void **state) {
    (void)state;
    for (int later_key = 0; later_key < 2; ++later_key) {
        int status = -1;
        pid_t pid = fork();
        if (!pid) _exit(child(later_key));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_that_fail_without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
