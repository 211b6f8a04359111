/* SPDX-License-Identifier: MIT
 *
 * One process of a loader test: runs the commands of its arguments against the library and prints one
 * line for each. The tests start it with LD_LIBRARY_PATH at fake drivers and read the lines.
 *   open BACKEND ORDINAL [ARCH]   stw_..._backend.open: "STATUS text" or "STW_OK arch|name|compute units|smem|memory"
 *   threads BACKEND               64 threads open device 0 at once: "N STATUS text" when all agree
 *   devices                       stw_devices: a line a device, backend|ordinal|arch|usable|memory|uuid|name|note
 *   at-pci ROOT ADDRESS           stw_hip_arch_at_pci
 *   preload PATH                  dlopen, as a program that already uses its own driver
 *   chdir PATH, setenv NAME [VALUE]
 *   descriptors N                 no file gets a number from N on: 0 leaves none
 *   fork                          the rest runs in a child; "child N" with its exit status */
#include "backends/hip/driver.h"
#include "backends/gpu/kfd.h"
#include "backends/backend.h"
#include "loader_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The kernel driver's files of a recorded machine where FAKE_KFD_ROOT names one: the linker sends the
 * library's calls here. */
void __real_stw_kfd_read(const char *root, stw_kfd *kfd_out);
void __wrap_stw_kfd_read(const char *root, stw_kfd *kfd_out);
void __wrap_stw_kfd_read(const char *root, stw_kfd *kfd_out) {
    const char *recorded = getenv("FAKE_KFD_ROOT");
    __real_stw_kfd_read(*root || !recorded ? root : recorded, kfd_out);
}

static const stw_backend_ops *ops_named(const char *name) {
    return strcmp(name, "cuda") == 0 ? &stw_cuda_backend : &stw_hip_backend;
}

static void open_device(char **word, int words) {
    static const stw_env env; /* zero: nothing set */
    stw_open_request request = {.env = &env, .device = atoi(word[2]), .forced_arch = words > 3 ? word[3] : NULL};
    stw_device device, before;
    memset(&device, 0x5a, sizeof device);
    before = device;
    const stw_backend_ops *ops = ops_named(word[1]);
    stw_status status = ops->open(&request, &device);
    if (status != STW_OK) {
        printf("%s %s%s\n", stw_status_name(status), stw_last_error(),
               memcmp(&device, &before, sizeof device) ? " [device_out was touched]" : "");
        return;
    }
    printf("STW_OK %s|%s|%u|%u|%llu\n", device.arch->name, device.name, device.compute_units, device.smem_max,
           (unsigned long long)device.memory_bytes);
    ops->close(&device);
}

typedef struct thread_result {
    const stw_backend_ops *ops;
    pthread_barrier_t *barrier;
    stw_status status;
    char text[512];
} thread_result;

static void *open_in_thread(void *argument) {
    thread_result *result = argument;
    stw_env env;
    memset(&env, 0, sizeof env);
    stw_open_request request = {.env = &env};
    stw_device device;
    pthread_barrier_wait(result->barrier);
    result->status = result->ops->open(&request, &device);
    snprintf(result->text, sizeof result->text, "%s", result->status ? stw_last_error() : "");
    return NULL;
}

static void open_in_threads(const char *backend) {
    enum { THREADS = 64 };
    static thread_result results[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t barrier;
    int agree = 1;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; ++i) {
        results[i] = (thread_result){.ops = ops_named(backend), .barrier = &barrier};
        if (pthread_create(&threads[i], NULL, open_in_thread, &results[i])) abort();
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    for (int i = 1; i < THREADS; ++i)
        agree &= results[i].status == results[0].status && !strcmp(results[i].text, results[0].text);
    pthread_barrier_destroy(&barrier);
    printf("%s %s %s\n", agree ? "all" : "not all", stw_status_name(results[0].status), results[0].text);
}

static void list_devices(void) {
    stw_device_info infos[80];
    size_t count;
    for (size_t i = 0; i < 80; ++i) infos[i] = STW_INIT(stw_device_info);
    stw_status status = stw_devices(infos, 80, &count);
    if (status != STW_OK) printf("%s %s\n", stw_status_name(status), stw_last_error());
    for (size_t i = 0; status == STW_OK && i < count; ++i)
        if (infos[i].backend == STW_BACKEND_CUDA || /* the rest is this machine's */
            (infos[i].backend == STW_BACKEND_HIP && getenv("FAKE_KFD_ROOT")))
            printf("%s|%d|%s|%d|%llu|%s|%s|%s\n", stw_backend_name(infos[i].backend), (int)infos[i].device,
                   infos[i].arch, (int)infos[i].usable, (unsigned long long)infos[i].memory_bytes, infos[i].uuid,
                   infos[i].name, infos[i].note);
    printf("last %s\n", stw_backend_name(infos[count - 1].backend));
}

static void create_context(char **word) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.memory = (stw_memory)atoi(word[1]);
    opts.backend = (stw_backend)atoi(word[2]);
    stw_status status = stw_context_create(&opts, &context);
    printf("%s %s\n", stw_status_name(status), status ? stw_last_error() : stw_context_arch(context));
    stw_context_destroy(context);
}

static void explain(char **word) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    char text[8000];
    opts.memory = (stw_memory)atoi(word[1]);
    desc.dtype = STW_F16;
    desc.batch = 1;
    desc.heads_q = desc.heads_kv = 2;
    desc.head_dim_qk = desc.head_dim_v = 40;
    desc.max_seq_q = desc.max_seq_kv = 33;
    stw_layout_bshd(&desc);
    stw_status status = stw_explain_attn(&opts, &desc, text, sizeof text, NULL);
    printf("%s", status ? stw_last_error() : text);
}

static void run_command(char *command) {
    char *word[5] = {"", "", "", "", ""}, *rest = NULL;
    int words = 0;
    for (char *at = strtok_r(command, " ", &rest); at && words < 5; at = strtok_r(NULL, " ", &rest)) word[words++] = at;
    if (loader_call(word[0], atoi(word[1])) || loader_problem(word)) {
        /* done */
    } else if (!strcmp(word[0], "open")) {
        open_device(word, words);
    } else if (!strcmp(word[0], "threads")) {
        open_in_threads(word[1]);
    } else if (!strcmp(word[0], "devices")) {
        list_devices();
    } else if (!strcmp(word[0], "context")) {
        create_context(word);
    } else if (!strcmp(word[0], "explain")) {
        explain(word);
    } else if (!strcmp(word[0], "at-pci")) {
        char arch[32];
        stw_status status = stw_hip_arch_at_pci(word[1], word[2], arch);
        printf("%s %s\n", stw_status_name(status), status ? stw_last_error() : arch);
    } else if (!strcmp(word[0], "preload")) {
        printf("preload %s\n", dlopen(word[1], RTLD_NOW | RTLD_LOCAL) ? "done" : dlerror());
    } else if (!strcmp(word[0], "chdir")) {
        if (chdir(word[1])) printf("chdir failed\n");
    } else if (!strcmp(word[0], "descriptors")) {
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = (rlim_t)atoi(word[1]);
        if (setrlimit(RLIMIT_NOFILE, &limit)) printf("descriptors failed\n");
    } else if (!strcmp(word[0], "setenv")) {
        setenv(word[1], word[2], 1);
    } else {
        printf("unknown command %s\n", word[0]);
    }
    fflush(stdout);
}

int main(int count, char **arguments) {
    pid_t child = 1;
    for (int i = 1; i < count; ++i) {
        if (strcmp(arguments[i], "fork")) {
            run_command(arguments[i]);
            continue;
        }
        child = fork();
        if (child) {
            int status = -1;
            waitpid(child, &status, 0);
            printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
            return 0;
        }
        alarm(120); /* a child that waits for a lock would wait for ever */
    }
    return 0;
}
