/* SPDX-License-Identifier: MIT
 *
 * Hopper's asynchronous instructions. What is asynchronous happens as late as it may, and destroys as early as it may:
 * a copy makes its place NaN at once and brings its bytes when somebody waits for them; a product reads its operands in
 * the wait that covers it. So a missing wait shows, and so does a place that is overwritten too early. EMU_EAGER=1: at
 * once. */
#include "machine.h"

#include "tests/loader/fakes/cuda_map.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { PRODUCTS = 512, SPINS = 1 << 20, NAMED = 16 };
static const bool eager = getenv("EMU_EAGER") != nullptr;

static char *shared(uint32_t at, uint32_t bytes) {
    if (at + (uint64_t)bytes > EMU_SHARED) emu_fail("an address outside shared memory");
    return dev_shared + at;
}

void emu_spin(const void *where) {
    static const void *last[EMU_THREADS];
    static int times[EMU_THREADS];
    uint32_t me = emu_self->number;
    times[me] = last[me] == where ? times[me] + 1 : 0;
    last[me] = where;
    if (times[me] > SPINS) emu_fail("a thread waits without end");
    if (times[me]) emu_yield();
}

/* ---- mbarriers ---- */

struct mbarrier {
    int32_t bytes; /* still to come; fewer than 0: came before they were announced */
    uint32_t count : 10, pending : 10, phase : 1, mark : 11;
};
enum { MARK = 0x35A };

static mbarrier *mbarrier_at(uint32_t at) {
    if (at % 8) emu_fail("an mbarrier that is not aligned");
    mbarrier *b = (mbarrier *)(void *)shared(at, 8);
    if (b->mark != MARK) emu_fail("an mbarrier that was not initialised, or was overwritten");
    return b;
}

void emu_mbarrier_init(uint32_t at, int arrivals) {
    *(mbarrier *)(void *)shared(at, 8) = {0, (uint32_t)arrivals, (uint32_t)arrivals, 0, MARK};
}

static void add(uint32_t at, int arrivals, int bytes) {
    mbarrier *b = mbarrier_at(at);
    if ((int)b->pending < arrivals) emu_fail("more arrivals at an mbarrier than it was made for");
    b->pending -= (uint32_t)arrivals;
    b->bytes += bytes;
    if (b->pending || b->bytes) return;
    b->pending = b->count;
    b->phase ^= 1;
}

void emu_mbarrier_add(uint32_t at, int arrivals, int bytes_announced) { add(at, arrivals, bytes_announced); }

static void copies_arrive(uint32_t mbarrier);

void emu_mbarrier_wait(uint32_t at, uint32_t parity) {
    for (int i = 0; mbarrier_at(at)->phase == parity; ++i) {
        copies_arrive(at);
        if (i == SPINS) emu_fail("an mbarrier's phase does not end");
        emu_yield();
    }
}

/* ---- copies ---- */

struct copy {
    uint32_t to, bytes, mbarrier;
    const void *from;
    const fake_map *map; /* nullptr: consecutive bytes */
    int at[FAKE_MAP_RANK_MAX];
};
static std::vector<copy> copies;

static uint32_t swizzled(uint32_t at) { return at ^ (at >> 7 & 7u) << 4; }

static void arrive(const copy &c) {
    if (!c.map) memcpy(shared(c.to, c.bytes), c.from, c.bytes);
    else {
        const fake_map &m = *c.map;
        uint32_t rows = c.bytes / (m.box[0] * 2u);
        for (uint32_t r = 0, to = c.to; r < rows; ++r) {
            uint64_t from = m.start;
            bool inside = true;
            uint32_t rest = r;
            for (uint32_t d = 1; d < m.rank; ++d) {
                int64_t i = (int64_t)c.at[d] + rest % m.box[d];
                rest /= m.box[d];
                inside = inside && i >= 0 && i < m.dim[d];
                from += (uint64_t)i * m.stride[d - 1];
            }
            for (uint32_t x = 0; x < m.box[0]; ++x, to += 2) {
                int64_t i = (int64_t)c.at[0] + x;
                uint16_t value = 0;
                if (inside && i >= 0 && i < m.dim[0]) memcpy(&value, (const char *)from + 2 * i, 2);
                memcpy(dev_shared + swizzled(to), &value, 2);
            }
        }
    }
    add(c.mbarrier, 0, -(int)c.bytes);
}

static void begin(copy c) {
    mbarrier_at(c.mbarrier);
    memset(shared(c.to, c.bytes), 0xFF, c.bytes);
    if (eager) arrive(c);
    else copies.push_back(c);
}

void emu_tensor_load(uint32_t to, const void *map, int rank, const int *from, uint32_t mbarrier) {
    const fake_map *m = (const fake_map *)map;
    if (m->mark != FAKE_MAP_MARK || m->rank != (uint32_t)rank) emu_fail("no tensor map of that rank");
    if ((m->modes >> 8 & 255u) != 3) emu_fail("a tensor map without the 128-byte swizzle");
    if (m->type != 6 && m->type != 9) emu_fail("a tensor map of another type than f16 and bf16");
    if (to % 1024) emu_fail("a tensor load to a place that is no multiple of 1024 bytes");
    copy c = {to, 2, mbarrier, nullptr, m, {}};
    for (int i = 0; i < rank; ++i) {
        c.at[i] = from[i];
        c.bytes *= m->box[i];
    }
    begin(c);
}

void emu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier) {
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes) emu_fail("a bulk copy that is not aligned");
    begin({to, bytes, mbarrier, from, nullptr, {}});
}

static void copies_arrive(uint32_t mbarrier) {
    size_t kept = 0;
    for (size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].mbarrier != mbarrier) copies[kept++] = copies[i];
        else arrive(copies[i]);
    }
    copies.resize(kept);
}

/* Additions of a thread read shared memory in its wait for that, and reach the sums in its wait for all: as late as
 * they may. */
struct addition {
    float *to;
    uint32_t from, bytes, thread;
    std::vector<float> read;
};
static std::vector<addition> additions;

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

void emu_bulk_add(float *to, uint32_t from, uint32_t bytes) {
    if (from % 16 || (uintptr_t)to % 16 || bytes % 16 || !bytes) emu_fail("a bulk addition that is not aligned");
    shared(from, bytes);
    additions.push_back({to, from, bytes, emu_self->number, {}});
    if (eager) emu_bulk_wait();
}

void emu_bulk_wait_read() {
    for (addition &a : additions) {
        if (a.thread != emu_self->number || !a.read.empty()) continue;
        a.read.resize(a.bytes / sizeof(float));
        memcpy(a.read.data(), shared(a.from, a.bytes), a.bytes);
    }
}

void emu_bulk_wait() {
    emu_bulk_wait_read();
    size_t kept = 0;
    for (size_t i = 0; i < additions.size(); ++i) {
        if (additions[i].thread != emu_self->number) {
            std::swap(additions[kept++], additions[i]);
            continue;
        }
        float *to = additions[i].to;
        for (float x : additions[i].read) {
            *to = flushed(flushed(*to) + flushed(x));
            ++to;
        }
    }
    additions.resize(kept);
}

bool emu_copies_under_way() { return !copies.empty() || !additions.empty(); }

/* ---- barriers ---- */

static struct {
    int here;
    unsigned times;
} named[NAMED];

void emu_named_barrier(int id, int threads) {
    auto &b = named[id];
    unsigned before = b.times;
    if (++b.here == threads) {
        b.here = 0;
        ++b.times;
    }
    for (int i = 0; b.times == before; ++i) {
        if (i == SPINS) emu_fail("a named barrier that not all threads reach");
        emu_yield();
    }
}

int emu_barrier_or(int x) {
    static int any;
    any |= x != 0;
    emu_barrier();
    int got = any;
    emu_barrier();
    any = 0;
    emu_barrier();
    return got;
}

/* ---- products ---- */

struct products {
    emu_wgmma list[PRODUCTS];
    int count, groups;
};
static products *under_way[EMU_THREADS];

void emu_sm90_begin() {
    for (auto p : under_way)
        if (p) p->count = p->groups = 0;
    memset(named, 0, sizeof named);
    copies.clear();
    additions.clear();
}

static float number(uint16_t bits, bool f16) {
    if (f16) return (float)__builtin_bit_cast(_Float16, bits);
    return __builtin_bit_cast(float, (uint32_t)bits << 16);
}

/* An operand's 16 elements of K, of row (A) or column (B) `i`, by its descriptor. `rows`: K are the operand's rows. */
static void operand(float *out, uint64_t descriptor, bool rows, int i, bool f16) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7u)) emu_fail("a descriptor without the 128-byte swizzle");
    const uint32_t at = (uint32_t)(descriptor & 0x3FFFu) * 16, lead = (uint32_t)(descriptor >> 16 & 0x3FFFu) * 16,
                   step = (uint32_t)(descriptor >> 32 & 0x3FFFu) * 16;
    uint16_t bits[16];
    if (rows)
        for (uint32_t k = 0; k < 16; ++k)
            memcpy(
                bits + k,
                shared(swizzled(at + (uint32_t)i / 64 * lead + (uint32_t)i % 64 * 2 + k / 8 * step + k % 8 * 128), 2),
                2);
    else
        for (uint32_t k = 0; k < 16; k += 8)
            memcpy(bits + k, shared(swizzled(at + (uint32_t)i / 8 * step + (uint32_t)i % 8 * 128 + k * 2), 16), 16);
    if (f16)
        for (int k = 0; k < 16; ++k) out[k] = number(bits[k], true);
    else
        for (int k = 0; k < 16; ++k) out[k] = number(bits[k], false);
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

/* c + a b. Products and their sum have more range than f32, as on hardware (matrix.cpp): a finite sum that is too large
 * becomes infinite, never no number. */
static float sum(float c, const float *a, const float *b) {
    eight x = *(const eight *)(const void *)a * *(const eight *)(const void *)b +
              *(const eight *)(const void *)(a + 8) * *(const eight *)(const void *)(b + 8);
    float fast = c + (((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])));
    if (std::isfinite(fast)) return fast;
    double wide = (double)c;
    for (int k = 0; k < 16; ++k) wide += (double)a[k] * (double)b[k];
    return (float)wide;
}

static void multiply(const emu_wgmma &p) {
    const int lane = (int)emu_self->number % EMU_LANES, warp = (int)emu_self->number / EMU_LANES % 4;
    float a[2][16], b[16];
    for (int half = 0; half < 2; ++half) {
        if (!p.from_registers) operand(a[half], p.a, p.a_rows, 16 * warp + lane / 4 + 8 * half, p.f16);
        else
            for (int k = 0; k < 16; ++k)
                a[half][k] = number((uint16_t)(p.w[k % 8 / 2][half + k / 8 * 2] >> (k % 2 * 16)), p.f16);
    }
    for (int i = 0; i < p.count / 4; ++i)
        for (int e = 0; e < 2; ++e) {
            operand(b, p.b, p.b_rows, 8 * i + lane % 4 * 2 + e, p.f16);
            for (int half = 0; half < 2; ++half) {
                float &x = p.x[4 * i + 2 * half + e];
                x = sum(p.adds ? x : 0.0f, a[half], b);
            }
        }
}

static products &mine() {
    products *&p = under_way[emu_self->number];
    if (!p) p = (products *)calloc(1, sizeof *p);
    if (!p) emu_fail("no memory");
    return *p;
}

void emu_wgmma_begin(const emu_wgmma &product) {
    if (eager) return multiply(product);
    products &p = mine();
    if (p.count == PRODUCTS) emu_fail("too many products under way");
    p.list[p.count] = product;
    p.list[p.count++].group = p.groups;
    if (!product.adds) memset(product.x, 0xFF, (size_t)product.count * sizeof *product.x);
}

void emu_wgmma_commit() { ++mine().groups; }

void emu_wgmma_wait(int left) {
    products &p = mine();
    int done = 0;
    while (done < p.count && p.list[done].group < p.groups - left) multiply(p.list[done++]);
    p.count -= done;
    memmove(p.list, p.list + done, (size_t)p.count * sizeof *p.list);
}
