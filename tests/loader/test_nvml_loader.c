/* SPDX-License-Identifier: MIT
 *
 * stw_devices over a fake NVML: what it tells, every way it can fail, and that listing devices starts no
 * driver; and the rules of stw_devices' arguments. */
#include "spawn.h"
#include "sternway/sternway.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define NVML_FILE        "FAKE_NVML=" FIXTURES "/l40s-x2/nvml.txt"
#define NO_KERNELS(arch) "this build holds no CUDA kernels for " arch " (images in this build: none)"
#define L40S(i, uuid)                                                                                                  \
    "cuda|" #i "|sm89|0|48305799168|GPU-9b1f2d4e-5c6a-8b70-a1c2-" uuid "|NVIDIA L40S|" NO_KERNELS("sm89")
#define FIRST  L40S(0, "0e4f5a6b7c8d")
#define SECOND L40S(1, "1e4f5a6b7c8d")

static const char *const symbols[] = {
#define STW_NVML(name, need, parameters) #name,
#include "dispatch/nvml.def"
#undef STW_NVML
};
enum { SYMBOLS = sizeof symbols / sizeof symbols[0] };
/* What the library does without. Written here, since a row that calls a function optional by mistake says so twice. */
static const char *const optional[] = {"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", NULL};

static spawn run;

static void tool(const char *libraries, const char *const *environment, const char *const *commands) {
    spawn_tool(&run, TOOL, libraries, environment, commands);
    assert_int_equal(run.exit_status, 0);
}

/* The list with all three vendors' libraries in reach: NVML is asked and ended, no driver is started. */
static void listing_starts_no_driver(void **state) {
    (void)state;
    tool(FAKES "/nvml:" FAKES "/cuda:" FAKES "/hip7",
         LIST(NVML_FILE, "FAKE_CUDA_DEVICES=NVIDIA L40S|8.9|142|101376|48305799168",
              "FAKE_HIP_DEVICES=AMD Instinct MI300X|gfx942|304|65536|206141652992"),
         LIST("devices", "devices"));
    assert_string_equal(run.out, FIRST "\n" SECOND "\nlast cpu\n" FIRST "\n" SECOND "\nlast cpu\n");
    assert_null(strstr(run.log, "cuda:"));
    assert_null(strstr(run.log, "hip7:"));
    assert_int_equal(spawn_count(run.log, "nvml:nvmlInit_v2"), 2);
    assert_int_equal(spawn_count(run.log, "nvml:nvmlShutdown"), 2);
    const char *end = run.log + strlen(run.log) - strlen("nvml:nvmlShutdown\n");
    assert_string_equal(end, "nvml:nvmlShutdown\n");
}

static void listing_then_fork(void **state) {
    (void)state;
    tool(FAKES "/nvml:" FAKES "/cuda", LIST(NVML_FILE, "FAKE_CUDA_DEVICES=NVIDIA L40S|8.9|142|101376|48305799168"),
         LIST("devices", "fork", "devices", "open cuda 0"));
    assert_string_equal(spawn_line(run.out, 3), FIRST);
    assert_string_equal(spawn_line(run.out, 6), "STW_E_NO_IMAGE cuda: device 0 \"NVIDIA L40S\" is sm89; this build "
                                                "holds no CUDA kernels for it (images in this build: none)");
}

static void recorded_machines(void **state) {
    (void)state;
    tool(FAKES "/nvml", LIST("FAKE_NVML=" FIXTURES "/h200-x8/nvml.txt"), LIST("devices"));
    assert_string_equal(spawn_line(run.out, 7), "cuda|7|sm90|0|150754820096|GPU-a1f0c307-77aa-4c21-8f5b-0e6d1c2b3a07|"
                                                "NVIDIA H200|" NO_KERNELS("sm90"));
    assert_string_equal(spawn_line(run.out, 8), "last cpu");
    tool(FAKES "/nvml", LIST("FAKE_NVML=" FIXTURES "/several-nvidia/nvml.txt"), LIST("devices"));
    assert_string_equal(
        spawn_line(run.out, 2),
        "cuda|2|sm75|0|16106127360|GPU-bbbbbbbb-cccc-dddd-eeee-ffffffffffff|Tesla T4|sm75 is older than "
        "compute capability 8.0, which kernels need");
    tool(FAKES "/nvml", NOTHING, LIST("devices"));
    assert_string_equal(run.out, "last cpu\n");
}

/* Without NVML the devices are those of /dev, of which a test machine may have some: never wrong ones. */
static void nvml_unusable(const char *folder, const char *const *environment, int expect_shutdown) {
    char libraries[512], shutdown[256];
    snprintf(libraries, sizeof libraries, FAKES "/%s", folder);
    tool(libraries, environment, LIST("devices"));
    assert_null(strstr(run.out, "L40S"));
    assert_non_null(strstr(run.out, "last cpu\n"));
    snprintf(shutdown, sizeof shutdown, "%s:nvmlShutdown", folder);
    assert_int_equal(spawn_count(run.log, shutdown), expect_shutdown);
}

/* A moment without descriptors is no missing NVML: the next list has its devices. */
static void no_descriptor_for_a_moment(void **state) {
    (void)state;
    tool(FAKES "/nvml", LIST(NVML_FILE), LIST("descriptors 0", "devices", "descriptors 64", "devices"));
    assert_string_equal(spawn_line(run.out, 0), "last cpu");
    assert_string_equal(spawn_line(run.out, 1), FIRST);
    assert_string_equal(spawn_line(run.out, 2), SECOND);
}

static void each_symbol_missing(void **state) {
    (void)state;
    for (int i = 0; i < SYMBOLS; ++i) {
        char folder[128];
        snprintf(folder, sizeof folder, "nvml-without-%s", symbols[i]);
        if (!spawn_listed(optional, symbols[i])) {
            nvml_unusable(folder, LIST(NVML_FILE), 0);
            assert_string_equal(run.log, ""); /* not even started */
            continue;
        }
        char libraries[512];
        snprintf(libraries, sizeof libraries, FAKES "/%s", folder);
        tool(libraries, LIST(NVML_FILE), LIST("devices"));
        assert_string_equal(
            spawn_line(run.out, 0),
            strcmp(symbols[i], "nvmlDeviceGetUUID")
                ? "cuda|0|sm89|0|0|GPU-9b1f2d4e-5c6a-8b70-a1c2-0e4f5a6b7c8d|NVIDIA L40S|" NO_KERNELS("sm89")
                : "cuda|0|sm89|0|48305799168||NVIDIA L40S|" NO_KERNELS("sm89"));
    }
}

static void each_call_failing(void **state) {
    (void)state;
    nvml_unusable("nvml", LIST(NVML_FILE, "FAKE_FAIL=nvmlInit_v2:9"), 0);
    nvml_unusable("nvml", LIST(NVML_FILE, "FAKE_FAIL=nvmlDeviceGetCount_v2:999"), 1);
    static const struct {
        const char *plan, *line;
    } calls[] = {
        {"FAKE_FAIL=nvmlDeviceGetHandleByIndex_v2:15:1",
         "cuda|0||0|0|||compute capability not known: nvmlDeviceGetHandleByIndex_v2 gave 15"},
        {"FAKE_FAIL=nvmlDeviceGetCudaComputeCapability:3:1",
         "cuda|0||0|48305799168|GPU-9b1f2d4e-5c6a-8b70-a1c2-0e4f5a6b7c8d|NVIDIA L40S|compute capability not "
         "known: "
         "nvmlDeviceGetCudaComputeCapability gave 3"},
        {"FAKE_FAIL=nvmlDeviceGetName:999:1",
         "cuda|0|sm89|0|48305799168|GPU-9b1f2d4e-5c6a-8b70-a1c2-0e4f5a6b7c8d||" NO_KERNELS("sm89")},
        {"FAKE_FAIL=nvmlDeviceGetUUID:999:1", "cuda|0|sm89|0|48305799168||NVIDIA L40S|" NO_KERNELS("sm89")},
        {"FAKE_FAIL=nvmlDeviceGetMemoryInfo:999:1",
         "cuda|0|sm89|0|0|GPU-9b1f2d4e-5c6a-8b70-a1c2-0e4f5a6b7c8d|NVIDIA L40S|" NO_KERNELS("sm89")},
        {"FAKE_FAIL=nvmlDeviceGetCudaComputeCapability:3:1,nvmlDeviceGetName:999:1", /* the first is told */
         "cuda|0||0|48305799168|GPU-9b1f2d4e-5c6a-8b70-a1c2-0e4f5a6b7c8d||compute capability not known: "
         "nvmlDeviceGetCudaComputeCapability gave 3"},
        {"FAKE_FAIL=nvmlShutdown:999", FIRST},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
        tool(FAKES "/nvml", LIST(NVML_FILE, calls[i].plan), LIST("devices"));
        assert_string_equal(spawn_line(run.out, 0), calls[i].line);
        assert_string_equal(spawn_line(run.out, 1), SECOND); /* the other device is whole */
        assert_int_equal(spawn_count(run.log, "nvml:nvmlShutdown"), 1);
    }
}

/* ---- arguments, on the machine of the test --------------------------------------------------------*/

static void refused(stw_device_info *infos, size_t capacity, size_t *count_out, const char *text) {
    assert_int_equal(stw_devices(infos, capacity, count_out), STW_E_INVALID);
    assert_string_equal(stw_last_error(), text);
}

static void bad_arguments(void **state) {
    (void)state;
    stw_device_info infos[2] = {STW_INIT(stw_device_info), STW_INIT(stw_device_info)};
    size_t count = 77;
    char text[256];
    refused(infos, 2, NULL, "devices: count_out is null");
    refused(NULL, 3, &count, "devices: infos is null with capacity 3; null needs capacity 0");
    static const size_t sizes[] = {0, 8, sizeof(stw_device_info) - 8, sizeof(stw_device_info) + 4, 4104, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        infos[0].struct_size = sizes[i];
        snprintf(text, sizeof text, "devices: infos[0].struct_size %zu is not a size of stw_device_info, here %zu",
                 sizes[i], sizeof(stw_device_info));
        refused(infos, 1, &count, text);
    }
    infos[0].struct_size = sizeof infos[0];
    infos[1].struct_size = 0;
    infos[0].device = 1234;
    snprintf(text, sizeof text, "devices: infos[1].struct_size 0 is not that of infos[0], %zu", sizeof infos[0]);
    refused(infos, 2, &count, text);
    assert_int_equal(count, 77); /* refused calls change nothing */
    assert_int_equal(infos[0].device, 1234);
}

static void capacity_and_stride(void **state) {
    (void)state;
    enum { MANY = 200 };
    static stw_device_info all[MANY];
    size_t count = 0, again = 0;
    assert_int_equal(stw_devices(NULL, 0, &count), STW_OK);
    assert_true(count >= 1 && count < MANY);
    for (size_t i = 0; i < MANY; ++i) {
        memset(&all[i], 0xff, sizeof all[i]);
        all[i].struct_size = sizeof all[i];
    }
    assert_int_equal(stw_devices(all, MANY, &again), STW_OK);
    assert_int_equal(again, count);
    const stw_device_info *cpu = &all[count - 1];
    assert_int_equal(cpu->backend, STW_BACKEND_CPU);
    assert_int_equal(cpu->usable, 1);
    assert_int_equal(cpu->device, 0);
    assert_string_equal(cpu->arch, "cpu");
    assert_string_equal(cpu->note, "");
    assert_true(cpu->compute_units >= 1 && cpu->memory_bytes > 0);
    assert_int_equal(all[count].device, -1); /* behind the end: as before */

    /* a capacity of fewer than there are, and elements of a newer, longer struct with guards between */
    struct longer {
        stw_device_info info;
        uint64_t newer[3];
    } two[2];
    memset(two, 0xab, sizeof two);
    two[0].info.struct_size = two[1].info.struct_size = sizeof two[0];
    assert_int_equal(stw_devices(&two[0].info, 1, &again), STW_OK);
    assert_int_equal(again, count);
    assert_int_equal(two[0].info.struct_size, sizeof two[0]);
    assert_int_equal(two[0].info.backend, all[0].backend);
    assert_string_equal(two[0].info.name, all[0].name);
    for (int i = 0; i < 3; ++i) {
        assert_true(two[0].newer[i] == 0);
        assert_true(two[1].newer[i] == 0xababababababababu);
    }
    assert_int_equal(two[1].info.device, (int32_t)0xabababab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listing_starts_no_driver),
        cmocka_unit_test(listing_then_fork),
        cmocka_unit_test(recorded_machines),
        cmocka_unit_test(no_descriptor_for_a_moment),
        cmocka_unit_test(each_symbol_missing),
        cmocka_unit_test(each_call_failing),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(capacity_and_stride),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
