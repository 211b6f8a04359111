/* SPDX-License-Identifier: MIT
 *
 * The probe as a function over recorded machines: every archive of machines/ has an expect.txt with its
 * device list, one line a device: backend|ordinal|arch|usable|compute units|memory|uuid|name|note. */
#include "backends/gpu/arch.h"
#include "backends/backend.h"
#include "dispatch/probe.h"
#include "fixture.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static stw_probe_facts facts;

/* The linker sends the library's calls here: kernels that do not tell what CPUs and memory there are. And
 * those of a sanitizer's run time in this program, before it watches anything. */
#if defined(__clang__)
#define UNWATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define UNWATCHED
#endif
static int affinity_fails, numbers_fail;
int __real_sched_getaffinity(pid_t process, size_t size, cpu_set_t *set);
long __real_sysconf(int name);
int __wrap_sched_getaffinity(pid_t process, size_t size, cpu_set_t *set);
long __wrap_sysconf(int name);

UNWATCHED int __wrap_sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    return affinity_fails ? -1 : __real_sched_getaffinity(process, size, set);
}

UNWATCHED long __wrap_sysconf(int name) { return numbers_fail ? -1 : __real_sysconf(name); }

/* What differs between machines that run the test is fixed: threads and memory of the CPU. */
static void gather(const char *root) {
    char path[1024];
    stw_probe_gather(root, &facts);
    assert_true(facts.cpu_threads >= 1);
    assert_true(facts.cpu_memory > 0);
    facts.cpu_threads = 2;
    facts.cpu_memory = 0;
    snprintf(path, sizeof path, "%s/nvml.txt", root);
    fixture_nvml records[FIXTURE_NVML_MAX];
    int count = fixture_nvml_read(path, records);
    if (count < 0) {
        snprintf(facts.nvml_note, sizeof facts.nvml_note, "NVML is not there");
        return;
    }
    facts.nvml_works = 1;
    facts.nvidia_count = (size_t)count;
    for (int i = 0; i < count; ++i) {
        stw_probe_nvidia *to = &facts.nvidia[i];
        to->major = records[i].major;
        to->minor = records[i].minor;
        to->memory_bytes = records[i].memory;
        memcpy(to->name, records[i].name, sizeof to->name);
        memcpy(to->uuid, records[i].uuid, sizeof to->uuid);
    }
}

static void list_devices(char *text, size_t capacity) {
    size_t length = 0;
    for (size_t i = 0; i < stw_probe_count(&facts); ++i) {
        stw_device_info info;
        memset(&info, 0xff, sizeof info);
        info.struct_size = sizeof info;
        stw_probe_device(&facts, i, &info);
        assert_int_equal(info.struct_size, sizeof info);
        length += (size_t)snprintf(text + length, capacity - length, "%s|%d|%s|%d|%u|%llu|%s|%s|%s\n",
                                   stw_backend_name(info.backend), (int)info.device, info.arch, (int)info.usable,
                                   info.compute_units, (unsigned long long)info.memory_bytes, info.uuid, info.name,
                                   info.note);
        assert_true(length < capacity);
    }
}

static void read_text(const char *folder, const char *name, char *text, size_t capacity) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    text[0] = 0;
    if (!file) return;
    text[fread(text, 1, capacity - 1, file)] = 0;
    fclose(file);
}

static void fixture_test(void **state) {
    static char seen[32768], expected[32768], notes[1024];
    char root[512];
    snprintf(root, sizeof root, "%s/%s", FIXTURES, (const char *)*state);
    read_text(root, "expect.txt", expected, sizeof expected);
    assert_true(expected[0]);
    gather(root);
    facts.images = (stw_image_set){0}; /* the expectations are those of a build without images */
    list_devices(seen, sizeof seen);
    assert_string_equal(seen, expected);
    read_text(root, "notes.txt", notes, sizeof notes);
    notes[strcspn(notes, "\n")] = 0;
    assert_string_equal(facts.kfd.note, notes);
}

/* ---- decoding ----------------------------------------------------------------------------------*/

static void gfx_versions(void **state) {
    (void)state;
    static const struct {
        uint64_t version;
        const char *arch;
    } cases[] = {{90010, "gfx90a"},
                 {90402, "gfx942"},
                 {90400, "gfx940"},
                 {90008, "gfx908"},
                 {90006, "gfx906"},
                 {90500, "gfx950"},
                 {110000, "gfx1100"},
                 {110501, "gfx1151"},
                 {100300, "gfx1030"},
                 {120001, "gfx1201"},
                 {80003, "gfx803"},
                 {91515, "gfx9ff"},
                 {0, ""},
                 {9999, ""},
                 {91600, ""},
                 {90016, ""},
                 {1000000, ""},
                 {UINT64_MAX, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char arch[32] = "poison";
        assert_int_equal(stw_arch_of_gfx_version(cases[i].version, arch), cases[i].arch[0] != 0);
        assert_string_equal(arch, cases[i].arch);
    }
}

static void gcn_names(void **state) {
    (void)state;
    static const struct {
        const char name[24];
        const char *arch;
    } cases[] = {{"gfx90a:sramecc+:xnack-", "gfx90a"},
                 {"gfx942", "gfx942"},
                 {"gfx1100", "gfx1100"},
                 {"gfx942:xnack+", "gfx942"},
                 {"gfx950:sramecc+:xnack-", "gfx950"},
                 {"", ""},
                 {"gfx", ""},
                 {"gfx90a/", ""},
                 {"gfx90g", ""},
                 {"gfx90A", ""},
                 {"gfx9-4-generic", ""},
                 {"AMD Instinct", ""},
                 {"gfx9", ""},
                 {"sm90", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char arch[32] = "poison";
        assert_int_equal(stw_arch_of_gcn_name(cases[i].name, sizeof cases[i].name, arch), cases[i].arch[0] != 0);
        assert_string_equal(arch, cases[i].arch);
    }
    char arch[32];
    static const char endless[40] = "gfx90a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0";
    assert_int_equal(stw_arch_of_gcn_name("gfx90a", 6, arch), 0); /* no end within the field */
    assert_int_equal(stw_arch_of_gcn_name(endless, sizeof endless, arch), 0);
    assert_int_equal(stw_arch_of_gcn_name("gf", 2, arch), 0);
}

static void compute_capabilities(void **state) {
    (void)state;
    static const struct {
        int major, minor;
        const char *arch, *rows;
    } cases[] = {
        {8, 0, "sm80", "sm80"},   {8, 6, "sm86", "sm80"},   {8, 9, "sm89", "sm80"},   {9, 0, "sm90", "sm90 sm80"},
        {10, 0, "sm100", "sm80"}, {10, 3, "sm103", "sm80"}, {12, 0, "sm120", "sm80"}, {12, 1, "sm121", "sm80"},
        {7, 5, "sm75", ""},       {6, 1, "sm61", ""},       {0, 0, "", ""},           {-1, 0, "", ""},
        {8, -1, "", "sm80"},      {8, 10, "", "sm80"},      {99, 9, "sm999", "sm80"}, {100, 0, "", "sm80"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char arch[32] = "poison", rows[64] = "";
        assert_int_equal(stw_arch_of_cc(cases[i].major, cases[i].minor, arch), cases[i].arch[0] != 0);
        assert_string_equal(arch, cases[i].arch);
        const stw_arch *row;
        for (size_t n = 0; (row = stw_cuda_row_of_cc(cases[i].major, cases[i].minor, n)) != NULL; ++n)
            snprintf(rows + strlen(rows), sizeof rows - strlen(rows), "%s%s", rows[0] ? " " : "", row->name);
        assert_string_equal(rows, cases[i].rows);
    }
}

/* sm and a number of two or three digits: backends/gpu/arch.c reads compute capabilities out of them. */
static void names_of_cuda_rows(void **state) {
    (void)state;
    int shared = 0;
    for (size_t i = 0; i < stw_arch_count; ++i) {
        const char *name = stw_archs[i].name;
        if (stw_archs[i].backend != STW_BACKEND_CUDA) continue;
        size_t digits = strncmp(name, "sm", 2) ? 0 : strspn(name + 2, "0123456789");
        assert_in_range(digits, 2, 3);
        assert_int_equal(name[2 + digits], 0);
        shared += &stw_archs[i] == STW_CUDA_SHARED_ARCH;
    }
    assert_int_equal(shared, 1);
}

/* Which image a device gets, over builds with different images. */
static void images_for_devices(void **state) {
    (void)state;
    static const stw_image rows[] = {{STW_BACKEND_CUDA, "sm80", STW_IMAGE_CUBIN, NULL, NULL, 0},
                                     {STW_BACKEND_CUDA, "sm80", STW_IMAGE_PTX, NULL, NULL, 0},
                                     {STW_BACKEND_CUDA, "sm90", STW_IMAGE_CUBIN, NULL, NULL, 0},
                                     {STW_BACKEND_HIP, "gfx942", STW_IMAGE_CODE_OBJECT, NULL, NULL, 0}};
    static const struct {
        size_t first, count;
        int major;
        const char *forced;
        int row; /* -1: none */
    } cases[] = {{0, 4, 8, NULL, 0},     {0, 4, 9, NULL, 2},   {0, 4, 10, NULL, 1},  {0, 4, 12, NULL, 1},
                 {0, 4, 7, NULL, -1},    {0, 2, 9, NULL, 1},   {0, 1, 9, NULL, -1},  {0, 1, 8, NULL, 0},
                 {1, 1, 8, NULL, -1},    {0, 4, 9, "sm80", 1}, {0, 4, 9, "sm90", 2}, {0, 4, 8, "sm90", -1},
                 {0, 4, 12, "sm90", -1}, {2, 1, 10, NULL, -1}, {0, 0, 9, NULL, -1},  {3, 1, 9, NULL, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        stw_image_set set = {rows + cases[i].first, cases[i].count, "attention"};
        const stw_image *image = stw_cuda_image(
            &set, cases[i].major, 0, cases[i].forced ? stw_arch_find(STW_BACKEND_CUDA, cases[i].forced) : NULL);
        assert_ptr_equal(image, cases[i].row < 0 ? NULL : &rows[cases[i].row]);
    }
    gather(FIXTURES "/mixed"); /* RTX 4090, MI210, RX 7900 XTX, CPU */
    facts.images = (stw_image_set){rows, 4, "attention"};
    static const int usable[] = {1, 0, 0, 1};
    stw_device_info info = STW_INIT(stw_device_info);
    for (size_t i = 0; i < 4; ++i) {
        stw_probe_device(&facts, i, &info);
        assert_int_equal(info.usable, usable[i]);
        assert_int_equal(info.note[0] == 0, usable[i]);
    }
    stw_probe_device(&facts, 1, &info);
    assert_string_equal(info.note, "this build holds no HIP kernels for gfx90a (images in this build: sm80 cubin, "
                                   "sm80 ptx, sm90 cubin, gfx942 code object)");
    gather(FIXTURES "/mi300x-x8");
    facts.images = (stw_image_set){rows + 3, 1, "attention"};
    stw_probe_device(&facts, 7, &info);
    assert_int_equal(info.usable, 1);
    assert_string_equal(info.note, "");
}

/* What the backends' tables promise: a build that has images of a backend has all of its functions. */
static void backends_with_images_are_complete(void **state) {
    (void)state;
    static const stw_backend_ops *const tables[] = {
#ifdef STW_WITH_CUDA
        &stw_cuda_backend,
#endif
#ifdef STW_WITH_HIP
        &stw_hip_backend,
#endif
        NULL};
    size_t images = 0;
    for (const stw_backend_ops *const *table = tables; *table; ++table) {
        const stw_backend_ops *ops = *table;
        assert_true(ops->open && ops->close);
        int complete = ops->variant_refusal && ops->attn_prepare && ops->attn_bwd && ops->attn_fwd && ops->stage &&
                       ops->dropout_mask && ops->buffer_alloc && ops->buffer_free && ops->copy && ops->stream_create &&
                       ops->stream_synchronize && ops->stream_destroy;
        size_t own = 0;
        for (size_t i = 0; i < stw_images.count; ++i) own += stw_images.rows[i].backend == ops->backend;
        assert_true(complete || !own);
        images += own;
    }
    assert_int_equal(images, stw_images.count); /* no image without its backend */
}

/* ---- files that no repository can hold ----------------------------------------------------------*/

#define NODES "/sys/class/kfd/kfd/topology/nodes"

static char scratch[64];

static void scratch_file(const char *name, const char *text, size_t length) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", scratch, name);
    for (char *slash = path + strlen(scratch); (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    fclose(file);
}

static void scratch_gpu(int node, const char *properties) {
    char name[128];
    snprintf(name, sizeof name, NODES "/%d/gpu_id", node);
    scratch_file(name, "28851\n", 6);
    snprintf(name, sizeof name, NODES "/%d/properties", node);
    scratch_file(name, properties, strlen(properties));
}

static int scratch_open(void **state) {
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/sternway-probe-XXXXXX");
    umask(022); /* somebody else looks into its folders below */
    return mkdtemp(scratch) && chmod(scratch, 0755) == 0 ? 0 : -1;
}

static int scratch_close(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    return system(command);
}

#define MI300X "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nvendor_id 4098\ndevice_id 29857\n"

/* A device cgroup hides other containers' GPUs: reads fail and the runtime skips the node. */
static void unreadable_files(void **state) {
    (void)state;
    char path[256];
    scratch_gpu(1, MI300X);
    scratch_gpu(2, MI300X);
    scratch_gpu(3, MI300X);
    snprintf(path, sizeof path, "%s" NODES "/1/gpu_id", scratch);
    assert_int_equal(chmod(path, 0), 0);
    snprintf(path, sizeof path, "%s" NODES "/3/properties", scratch);
    assert_int_equal(chmod(path, 0), 0);
    uid_t self = geteuid(); /* root reads everything: look as somebody else */
    if (self == 0 && seteuid(65534)) {
        printf("skip unreadable_files: root cannot become somebody else here: %s\n", strerror(errno));
        skip();
    }
    stw_probe_gather(scratch, &facts);
    assert_int_equal(seteuid(self), 0);
    assert_int_equal(facts.kfd.count, 1);
    assert_int_equal(facts.kfd.gpus[0].node, 2);
    assert_int_equal(facts.kfd.gpus[0].gfx_version, 90402);
    assert_string_equal(facts.kfd.note, "KFD node 1: no permission; KFD node 3: no permission");
}

static void strange_files(void **state) {
    (void)state;
    char path[256], *huge = malloc(1 << 20);
    memset(huge, 'x', 1 << 20);
    memcpy(huge, MI300X, strlen(MI300X));
    scratch_gpu(1, MI300X);
    scratch_file(NODES "/1/properties", huge, 1 << 20); /* what fits is read, and the rest noted */
    scratch_gpu(2, MI300X);
    snprintf(path, sizeof path, "%s" NODES "/2/properties", scratch);
    unlink(path);
    assert_int_equal(mkfifo(path, 0644), 0); /* must not wait for a writer */
    scratch_gpu(3, MI300X);
    snprintf(path, sizeof path, "%s" NODES "/3/properties", scratch);
    unlink(path);
    assert_int_equal(symlink("properties", path), 0);
    alarm(20);
    stw_probe_gather(scratch, &facts);
    alarm(0);
    free(huge);
    assert_int_equal(facts.kfd.count, 3);
    assert_int_equal(facts.kfd.gpus[0].gfx_version, 90402);
    assert_string_equal(facts.kfd.gpus[0].note, "properties: File too large");
    assert_string_equal(facts.kfd.gpus[1].note, "properties lack gfx_target_version");
    assert_string_equal(facts.kfd.gpus[2].note,
                        "properties: Too many levels of symbolic links; properties lack gfx_target_version");
}

/* A count cut short or with something behind it is no count, but simd_count also tells a GPU. */
static void strange_gpu_ids(void **state) {
    (void)state;
    scratch_gpu(1, MI300X);
    scratch_file(NODES "/1/gpu_id", "28851", 5); /* no newline: still a GPU's */
    scratch_gpu(2, MI300X);
    scratch_file(NODES "/2/gpu_id", "28851x\n", 7);
    scratch_gpu(3, "vendor_id 4098\n");
    scratch_file(NODES "/3/gpu_id", "0x\n", 3);
    scratch_gpu(4, MI300X);
    scratch_file(NODES "/4/gpu_id", "000", 3); /* a CPU's */
    stw_probe_gather(scratch, &facts);
    assert_int_equal(facts.kfd.count, 2);
    assert_int_equal(facts.kfd.gpus[0].node, 1);
    assert_int_equal(facts.kfd.gpus[1].node, 2);
    assert_string_equal(facts.kfd.note, "KFD node 3: neither gpu_id nor simd_count");
}

/* Of a node's memory banks 16 are read. */
static void more_banks_than_are_read(void **state) {
    (void)state;
    static const char properties[] = "heap_type 1\nsize_in_bytes 1000\n";
    scratch_gpu(1, MI300X);
    for (int bank = 0; bank < 20; ++bank) {
        char name[128];
        snprintf(name, sizeof name, NODES "/1/mem_banks/%d/properties", bank);
        scratch_file(name, properties, strlen(properties));
    }
    stw_probe_gather(scratch, &facts);
    assert_int_equal(facts.kfd.count, 1);
    assert_int_equal(facts.kfd.gpus[0].memory_bytes, 16000);
}

static void more_gpus_than_are_kept(void **state) {
    (void)state;
    for (int node = 1; node <= STW_KFD_GPUS_MAX + 3; ++node) scratch_gpu(node, MI300X);
    stw_probe_gather(scratch, &facts);
    assert_int_equal(facts.kfd.count, STW_KFD_GPUS_MAX);
    assert_int_equal(facts.kfd.gpus[STW_KFD_GPUS_MAX - 1].node, STW_KFD_GPUS_MAX); /* sorted as numbers */
    assert_string_equal(facts.kfd.note, "more KFD nodes than are read");
}

/* Thousands of folders: a bounded look at some of them. */
static void more_nodes_than_are_read(void **state) {
    (void)state;
    scratch_gpu(0, MI300X);
    for (int node = 1; node < 1100; ++node) {
        char path[256];
        snprintf(path, sizeof path, "%s" NODES "/%d", scratch, node);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    stw_probe_gather(scratch, &facts);
    assert_true(facts.kfd.count <= 1);
    assert_non_null(strstr(facts.kfd.note, "neither gpu_id nor simd_count"));
    assert_int_equal(strlen(facts.kfd.note), sizeof facts.kfd.note - 1); /* cut, not overrun */
}

/* nvidia0 to nvidia999 are GPUs, of which so many are kept; other names are not. */
static void nvidia_nodes(void **state) {
    (void)state;
    static const char *const others[] = {"nvidiactl", "nvidia", "nvidia-uvm", "nvidia1000", "nvidia1x"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        char name[64];
        snprintf(name, sizeof name, "/dev/%s", others[i]);
        scratch_file(name, "", 0);
    }
    scratch_file("/dev/nvidia7", "", 0);
    stw_probe_gather(scratch, &facts);
    assert_int_equal(facts.nvidia_nodes, 1);
    for (int i = 0; i < STW_PROBE_NVIDIA_MAX + 3; ++i) {
        char name[64];
        snprintf(name, sizeof name, "/dev/nvidia%d", i);
        scratch_file(name, "", 0);
    }
    stw_probe_gather(scratch, &facts);
    assert_int_equal(facts.nvidia_nodes, STW_PROBE_NVIDIA_MAX);
}

/* The first word of the first line that is digits with points. */
static void nvidia_driver_versions(void **state) {
    (void)state;
    static const struct {
        const char *text, *version;
    } rows[] = {{"NVRM version: NVIDIA UNIX Module  550.54.15  Tue\nGCC version: 12.2.0\n", "550.54.15"},
                {"  NVRM  580 of 2026 580.1 x\n", "580.1"},
                {"NVRM version: 580\nGCC version: 12.2.0\n", ""},
                {"NVRM version", ""},
                {"", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        scratch_file("/proc/driver/nvidia/version", rows[i].text, strlen(rows[i].text));
        stw_probe_gather(scratch, &facts);
        assert_string_equal(facts.nvidia_driver, rows[i].version);
    }
}

/* A note ends where nothing more is known. */
static void notes_without_reasons(void **state) {
    (void)state;
    stw_device_info info = STW_INIT(stw_device_info);
    memset(&facts, 0, sizeof facts);
    facts.nvidia_nodes = 1;
    stw_probe_device(&facts, 0, &info);
    assert_string_equal(info.note, "arch not known before the driver starts");
    facts.nvml_works = 1;
    facts.nvidia_count = 1;
    stw_probe_device(&facts, 0, &info);
    assert_string_equal(info.note, "compute capability not known");
    assert_int_equal(info.usable, 0);
}

/* The threads are those that the process may use, else all that are online (sched_getaffinity fails on
 * machines of more than 1024 CPUs), else one; memory that nobody tells is 0. */
static void cpus_that_nobody_counts(void **state) {
    (void)state;
    cpu_set_t allowed;
    assert_int_equal(__real_sched_getaffinity(0, sizeof allowed, &allowed), 0);
    stw_probe_gather("", &facts);
    assert_int_equal(facts.cpu_threads, CPU_COUNT(&allowed));
    affinity_fails = 1;
    stw_probe_gather("", &facts);
    assert_int_equal(facts.cpu_threads, __real_sysconf(_SC_NPROCESSORS_ONLN));
    assert_true(facts.cpu_memory > 0);
    numbers_fail = 1;
    stw_probe_gather("", &facts);
    assert_int_equal(facts.cpu_threads, 1);
    assert_true(facts.cpu_memory == 0);
    affinity_fails = numbers_fail = 0;
}

static void absurd_root(void **state) {
    (void)state;
    char root[2048];
    memset(root, 'r', sizeof root);
    root[0] = '/';
    root[sizeof root - 1] = 0;
    stw_probe_gather(root, &facts);
    assert_int_equal(stw_probe_count(&facts), 1);
}

/* Eight partitions of one GPU have its address, and their numbers above it; the driver's file without its list. */
static void partitions_and_containers(void **state) {
    (void)state;
    static stw_kfd kfd;
    stw_kfd_read(FIXTURES "/mi300x-cpx-nps4", &kfd);
    assert_int_equal(kfd.count, 8);
    assert_int_equal(kfd.unlisted, 0);
    assert_int_equal(kfd.gpus[7].location_id >> 28, 7);
    assert_ptr_equal(stw_kfd_at_pci(&kfd, "0000:05:00.0"), &kfd.gpus[0]);
    stw_kfd_read(FIXTURES "/container-without-kfd", &kfd);
    assert_int_equal(kfd.count, 0);
    assert_int_equal(kfd.unlisted, 1);
    stw_kfd_read(FIXTURES "/no-gpu", &kfd);
    assert_int_equal(kfd.unlisted, 0);
}

/* The numbers of the GPUs of mi300x-x8 that are shown: "3 0". */
static const char *shown(const char *rocr, const char *hip) {
    static char text[64];
    text[0] = 0;
    stw_probe_show_amd(&facts, rocr, hip);
    assert_int_equal(stw_probe_count(&facts), facts.amd_count + 1);
    for (size_t i = 0; i < facts.amd_count; ++i) {
        stw_device_info info = STW_INIT(stw_device_info);
        char uuid[48];
        stw_probe_device(&facts, i, &info);
        assert_int_equal(info.device, i);
        snprintf(uuid, sizeof uuid, "GPU-%016llx", (unsigned long long)facts.kfd.gpus[facts.amd[i]].unique_id);
        assert_string_equal(info.uuid, uuid);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u", i ? " " : "", facts.amd[i]);
    }
    return text;
}

/* As ROCr's filter and HIP's own read their variables. */
static void devices_that_are_shown(void **state) {
    (void)state;
    gather(FIXTURES "/mi300x-x8");
    static const struct {
        const char *rocr, *hip, *seen;
    } rows[] = {{NULL, NULL, "0 1 2 3 4 5 6 7"},
                {"", NULL, ""},
                {"-1", NULL, ""},
                {"3,0", NULL, "3 0"},
                {" 3 , 0x2", NULL, "3 2"},
                {"1,1,2", NULL, "1"},
                {"1,8,2", NULL, "1"},
                {"1,x,2", NULL, "1"},
                {"1,,2", NULL, "1"},
                {"GPU-3cbe41b50b01f7e4,0", NULL, "1 0"},
                {"gpu-3CBE41", NULL, "1"},
                {"GPU-3cbe,2", NULL, ""}, /* of three devices */
                {"GPU", NULL, ""},
                {"GPU-0000000000000000000000000000000000000,1", NULL, ""},
                {NULL, "2,0", "2 0"},
                {NULL, "2,2,0", "2 0"},
                {NULL, "2,-1,0", "2"},
                {NULL, "GPU-3cbec4c779998532", "3"},
                {"5,6,7", "2,0", "7 5"},
                {"5,6,7", "3", ""},
                {"5,6,7", "GPU-3cbec4c779998532", ""},
                {"7,6,5,4,3,2,1,0,7", "0", "7"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        assert_string_equal(shown(rows[i].rocr, rows[i].hip), rows[i].seen);
    gather(FIXTURES "/mi300x-cpx-nps4");
    assert_string_equal(shown("GPU-3cbe002bd3b6313d", NULL), ""); /* of eight partitions */
    assert_string_equal(shown("6", NULL), "6");
    facts.kfd.gpus[6].unique_id = 0;
    assert_string_equal(shown("GPU-00000", NULL), "");
}

static void pci_addresses(void **state) {
    (void)state;
    static stw_kfd kfd;
    stw_kfd_read(FIXTURES "/mi250x", &kfd);
    assert_ptr_equal(stw_kfd_at_pci(&kfd, "0000:c1:00.0"), &kfd.gpus[0]);
    assert_ptr_equal(stw_kfd_at_pci(&kfd, "0000:de:00.0"), &kfd.gpus[7]);
    assert_ptr_equal(stw_kfd_at_pci(&kfd, "0000:DE:00.0"), &kfd.gpus[7]);
    static const char *const wrong[] = {"0001:c1:00.0", "0000:c1:00.1", "0000:c2:00.0", "c1:00.0", "", "0000:c1:00.0x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) assert_null(stw_kfd_at_pci(&kfd, wrong[i]));
}

int main(void) {
    static char names[64][64];
    struct CMUnitTest tests[80] = {
        cmocka_unit_test(gfx_versions),
        cmocka_unit_test(gcn_names),
        cmocka_unit_test(compute_capabilities),
        cmocka_unit_test(images_for_devices),
        cmocka_unit_test(backends_with_images_are_complete),
        cmocka_unit_test_setup_teardown(unreadable_files, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(strange_files, scratch_open, scratch_close),
        cmocka_unit_test(names_of_cuda_rows),
        cmocka_unit_test_setup_teardown(strange_gpu_ids, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(more_banks_than_are_read, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(more_gpus_than_are_kept, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(more_nodes_than_are_read, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(nvidia_nodes, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(nvidia_driver_versions, scratch_open, scratch_close),
        cmocka_unit_test(notes_without_reasons),
        cmocka_unit_test(cpus_that_nobody_counts),
        cmocka_unit_test(absurd_root),
        cmocka_unit_test(pci_addresses),
        cmocka_unit_test(partitions_and_containers),
        cmocka_unit_test(devices_that_are_shown),
    };
    size_t count = 20, fixtures = 0;
    DIR *folder = opendir(FIXTURES);
    for (struct dirent *entry; folder && (entry = readdir(folder)) && fixtures < 64;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(names[fixtures], sizeof names[0], "%.63s", entry->d_name);
        tests[count++] = (struct CMUnitTest){names[fixtures], fixture_test, NULL, NULL, names[fixtures]};
        ++fixtures;
    }
    if (folder) closedir(folder);
    if (fixtures < 21) {
        fprintf(stderr, "only %zu fixtures in %s\n", fixtures, FIXTURES);
        return 1;
    }
    return _cmocka_run_group_tests("probe", tests, count, NULL, NULL);
}
