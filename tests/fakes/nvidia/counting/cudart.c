/* A CUDA runtime that computes nothing: device memory is host memory, kernels are named and not run, and what CUDA
 * forbids is noted. Built for CUDA 12 and 13 by `libraries.py`; no header of CUDA is needed, since the few layouts
 * that ONNX Runtime reads are written out here.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Status;
typedef void *Handle;
typedef struct { unsigned x, y, z; } Dim3;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
enum { GLOBAL_CAPTURE = 0 };

static Handle new_handle(void) {
    static uintptr_t next = 0x1000;
    return (Handle)__sync_add_and_fetch(&next, 16);
}

/* ---- What the tests read ---- */

static struct { const char *name; long value; } counts[] = {
    {"launches"}, {"allocations"}, {"live"}, {"captures"}, {"replays"}, {"synchronisations"}, {"from host"}, {"to host"},
};
enum { LAUNCHES, ALLOCATIONS, LIVE, CAPTURES, REPLAYS, SYNCHRONISATIONS, FROM_HOST, TO_HOST, COUNTS };

long counted(const char *name) {
    for (int i = 0; i < COUNTS; i++)
        if (!strcmp(counts[i].name, name)) return counts[i].value;
    return -1;
}

typedef struct { char *text; size_t used, room; } Lines;
static Lines wrong, launched;
static int recording;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

static void add_line(Lines *to, const char *format, va_list given) {
    pthread_mutex_lock(&writing);
    if (to->room - to->used < 4096) to->text = realloc(to->text, to->room = 2 * to->room + 8192);
    to->used += vsnprintf(to->text + to->used, 4000, format, given);
    to->text[to->used++] = '\n';
    to->text[to->used] = 0;
    pthread_mutex_unlock(&writing);
}

static void is_wrong(const char *format, ...) {
    va_list given;
    va_start(given, format);
    add_line(&wrong, format, given);
    va_end(given);
}

static void add_launch(const char *format, ...) {
    va_list given;
    va_start(given, format);
    if (recording) add_line(&launched, format, given);
    va_end(given);
}

const char *wrong_uses(void) { return wrong.text ? wrong.text : ""; }
const char *recorded(void) { return launched.text ? launched.text : ""; }
void record(int on) {
    recording = on;
    if (on && launched.text) launched.text[launched.used = 0] = 0;
}

/* ---- The device ---- */

static int capability = 87, multiprocessors = 16, on_chip_bytes = 167936, threads_each = 1536;

void device_is(int sm, int many, int bytes, int threads) {
    capability = sm, multiprocessors = many, on_chip_bytes = bytes, threads_each = threads;
}

Status cudaGetDeviceCount(int *n) { *n = 1; return OK; }
Status cudaGetDevice(int *device) { *device = 0; return OK; }
Status cudaSetDevice(int device) { return device ? INVALID_VALUE : OK; }
Status cudaDriverGetVersion(int *version) { *version = CUDA * 1000; return OK; }
Status cudaRuntimeGetVersion(int *version) { *version = CUDA * 1000; return OK; }
const char *cudaGetErrorString(Status status) { return status ? "an error" : "no error"; }
const char *cudaGetErrorName(Status status) { return status ? "cudaError" : "cudaSuccess"; }
Status cudaGetLastError(void) { return OK; }
Status cudaPeekAtLastError(void) { return OK; }

/* Offsets in cudaDeviceProp. */
#if CUDA == 12
enum { SIZE = 1032, PROCESSORS = 388, INTEGRATED = 396, THREADS = 624, SHARED = 640, REGISTERS = 648, SHARED_BLOCK = 696 };
Status cudaGetDeviceProperties_v2(char *p, int device) {
#else
enum { SIZE = 1008, PROCESSORS = 384, INTEGRATED = 388, THREADS = 604, SHARED = 624, REGISTERS = 632, SHARED_BLOCK = 672 };
Status cudaGetDeviceProperties(char *p, int device) {
#endif
    memset(p, 0, SIZE);
    strcpy(p, "counting device");
    *(size_t *)(p + 288) = (size_t)64 << 30;  /* totalGlobalMem */
    *(size_t *)(p + 296) = 48 << 10;          /* sharedMemPerBlock */
    *(int *)(p + 304) = 65536;                /* regsPerBlock */
    *(int *)(p + 308) = 32;                   /* warpSize */
    *(int *)(p + 320) = 1024;                 /* maxThreadsPerBlock */
    memcpy(p + 324, (int[]){1024, 1024, 64, 2147483647, 65535, 65535}, 6 * sizeof(int)); /* maxThreadsDim, maxGridSize */
    *(int *)(p + 360) = capability / 10;
    *(int *)(p + 364) = capability % 10;
    *(size_t *)(p + 368) = 512; /* textureAlignment */
    *(int *)(p + PROCESSORS) = multiprocessors;
    *(int *)(p + INTEGRATED) = capability == 87;
    *(int *)(p + THREADS) = threads_each;
    *(size_t *)(p + SHARED) = on_chip_bytes;
    *(int *)(p + REGISTERS) = 65536;
    *(size_t *)(p + SHARED_BLOCK) = on_chip_bytes - 1024;
    return OK;
}

Status cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: *value = 1024; break;                 /* MaxThreadsPerBlock */
    case 8: *value = 48 << 10; break;             /* MaxSharedMemoryPerBlock */
    case 10: *value = 32; break;                  /* WarpSize */
    case 16: *value = multiprocessors; break;     /* MultiProcessorCount */
    case 39: *value = threads_each; break;        /* MaxThreadsPerMultiProcessor */
    case 75: *value = capability / 10; break;     /* ComputeCapabilityMajor */
    case 76: *value = capability % 10; break;     /* ComputeCapabilityMinor */
    case 81: *value = on_chip_bytes; break;       /* MaxSharedMemoryPerMultiprocessor */
    case 97: *value = on_chip_bytes - 1024; break; /* MaxSharedMemoryPerBlockOptin */
    case 115: *value = 1; break;                  /* MemoryPoolsSupported */
    default: *value = 0;
    }
    return OK;
}

/* ---- Captures ---- */

static Handle captured_stream;
static int capture_mode;
static pthread_t capturing_thread;

/* A global capture forbids unsafe calls to every thread, others only to their own. */
static void not_in_a_capture(const char *call) {
    if (captured_stream && (capture_mode == GLOBAL_CAPTURE || pthread_equal(pthread_self(), capturing_thread)))
        is_wrong("%s during a capture", call);
}

typedef struct { const void *source; void *then; size_t bytes; } HostCopy;
typedef struct { Handle name; HostCopy *copies; int many; } Graph;
static Graph graphs[4096], capture;
static int many_graphs;

Status cudaStreamBeginCapture(Handle stream, int mode) {
    if (captured_stream) is_wrong("a capture during a capture");
    captured_stream = stream, capture_mode = mode, capturing_thread = pthread_self();
    capture = (Graph){0};
    return OK;
}

Status cudaStreamEndCapture(Handle stream, Handle *graph) {
    if (stream != captured_stream) is_wrong("the end of a capture that was not begun");
    captured_stream = NULL;
    counts[CAPTURES].value++;
    *graph = capture.name = new_handle();
    graphs[many_graphs++ % 4096] = capture;
    return OK;
}

Status cudaStreamIsCapturing(Handle stream, int *status) {
    *status = captured_stream != NULL && stream == captured_stream;
    return OK;
}

Status cudaGraphInstantiate(Handle *executable, Handle graph, unsigned long long flags) {
    *executable = graph;
    return OK;
}

static int is_pinned(const void *address);

Status cudaGraphLaunch(Handle executable, Handle stream) {
    counts[REPLAYS].value++;
    for (int i = 0; i < many_graphs && i < 4096; i++)
        for (int j = 0; graphs[i].name == executable && j < graphs[i].many; j++) {
            HostCopy *copy = &graphs[i].copies[j];
            if (!is_pinned(copy->source)) is_wrong("a replay reads host memory that was freed or never pinned");
            else if (memcmp(copy->source, copy->then, copy->bytes)) is_wrong("a replay reads host memory that changed");
        }
    return OK;
}

Status cudaGraphDestroy(Handle graph) { return OK; }
Status cudaGraphExecDestroy(Handle executable) { return OK; }

/* ---- Streams and events ---- */

static Handle ended[4096];
static int many_ended;

static void on(Handle stream, const char *call) {
    for (int i = 0; i < many_ended; i++)
        if (stream && ended[i] == stream) is_wrong("%s of a destroyed stream", call);
}

Status cudaStreamCreate(Handle *stream) { *stream = new_handle(); return OK; }
Status cudaStreamCreateWithFlags(Handle *stream, unsigned flags) { *stream = new_handle(); return OK; }
Status cudaStreamDestroy(Handle stream) {
    on(stream, "cudaStreamDestroy");
    ended[many_ended++ % 4096] = stream;
    return OK;
}
Status cudaStreamSynchronize(Handle stream) {
    counts[SYNCHRONISATIONS].value++;
    on(stream, "cudaStreamSynchronize");
    not_in_a_capture("cudaStreamSynchronize");
    return OK;
}
Status cudaDeviceSynchronize(void) {
    counts[SYNCHRONISATIONS].value++;
    not_in_a_capture("cudaDeviceSynchronize");
    return OK;
}
Status cudaStreamWaitEvent(Handle stream, Handle event, unsigned flags) { on(stream, "cudaStreamWaitEvent"); return OK; }
Status cudaEventCreate(Handle *event) { *event = new_handle(); return OK; }
Status cudaEventCreateWithFlags(Handle *event, unsigned flags) { *event = new_handle(); return OK; }
Status cudaEventDestroy(Handle event) { return OK; }
Status cudaEventRecord(Handle event, Handle stream) { on(stream, "cudaEventRecord"); return OK; }
Status cudaEventRecordWithFlags(Handle event, Handle stream, unsigned flags) { return cudaEventRecord(event, stream); }
Status cudaEventSynchronize(Handle event) { not_in_a_capture("cudaEventSynchronize"); return OK; }
Status cudaEventElapsedTime(float *ms, Handle begin, Handle end) { *ms = 1; return OK; }
Status cudaLaunchHostFunc(Handle stream, void (*function)(void *), void *argument) {
    if (captured_stream) is_wrong("a capture with a function of the host");
    function(argument);
    return OK;
}

/* ---- Memory ---- */

typedef struct { char *first; size_t bytes; } Block;
typedef struct { Block *blocks; int many, room; } Blocks;
static Blocks device_blocks, pinned_blocks;

static Block *block_of(Blocks *of, const void *address) {
    for (int i = 0; i < of->many; i++)
        if ((char *)address >= of->blocks[i].first && (char *)address < of->blocks[i].first + of->blocks[i].bytes)
            return &of->blocks[i];
    return NULL;
}

/* Pages of zeros: what nothing has written is the same in each run, and finite. */
static Status allocate(Blocks *of, void **address, size_t bytes) {
    *address = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*address == MAP_FAILED) return OUT_OF_MEMORY;
    if (of->many == of->room) of->blocks = realloc(of->blocks, (of->room = 2 * of->room + 1024) * sizeof(Block));
    of->blocks[of->many++] = (Block){*address, bytes ? bytes : 1};
    return OK;
}

static Status release(Blocks *of, void *address, const char *call) {
    Block *block = address ? block_of(of, address) : NULL;
    if (!address) return OK;
    if (!block || block->first != address) {
        is_wrong("%s of an address that is not allocated", call);
        return INVALID_VALUE;
    }
    if (of == &device_blocks) counts[LIVE].value -= block->bytes;
    munmap(address, block->bytes);
    *block = of->blocks[--of->many];
    return OK;
}

static int is_pinned(const void *address) { return block_of(&pinned_blocks, address) != NULL; }

Status cudaMalloc(void **address, size_t bytes) {
    not_in_a_capture("cudaMalloc");
    counts[ALLOCATIONS].value++;
    Status status = allocate(&device_blocks, address, bytes);
    if (status == OK) counts[LIVE].value += block_of(&device_blocks, *address)->bytes;
    return status;
}
Status cudaMallocFromPoolAsync(void **address, size_t bytes, Handle pool, Handle stream) { return cudaMalloc(address, bytes); }
Status cudaFree(void *address) {
    if (address) not_in_a_capture("cudaFree");
    return release(&device_blocks, address, "cudaFree");
}
Status cudaFreeAsync(void *address, Handle stream) { return cudaFree(address); }
Status cudaMallocHost(void **address, size_t bytes) {
    not_in_a_capture("cudaMallocHost");
    return allocate(&pinned_blocks, address, bytes);
}
Status cudaHostAlloc(void **address, size_t bytes, unsigned flags) { return cudaMallocHost(address, bytes); }
Status cudaFreeHost(void *address) {
    not_in_a_capture("cudaFreeHost");
    return release(&pinned_blocks, address, "cudaFreeHost");
}
Status cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = (size_t)64 << 30;
    *free_bytes = *total - counts[LIVE].value;
    return OK;
}
Status cudaPointerGetAttributes(char *attributes, const void *address) {
    memset(attributes, 0, CUDA == 12 ? 24 : 88);
    *(int *)attributes = block_of(&device_blocks, address) ? 2 : is_pinned(address) ? 1 : 0;
    *(const void **)(attributes + 8) = address;
    return OK;
}

/* As no kernel runs, an output is what its memory was used for before, and whether that is a number changes from run to
   run; the engine ends a reply that is none. */
static void make_finite(void *floats, size_t bytes) {
    uint32_t *words = floats;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if ((words[i] & 0x7f800000u) == 0x7f800000u) words[i] = 0;
}

static Status copy(void *to, const void *from, size_t bytes, int kind, int waits, Handle stream) {
    if (kind == HOST_TO_DEVICE) counts[FROM_HOST].value++;
    if (kind == DEVICE_TO_HOST) counts[TO_HOST].value++;
    if (waits) not_in_a_capture("cudaMemcpy");
    else on(stream, "cudaMemcpyAsync");
    if (!waits && captured_stream && stream == captured_stream) {
        if (kind == DEVICE_TO_HOST) is_wrong("a capture with a copy to the host");
        if (kind == HOST_TO_DEVICE) {
            HostCopy one = {from, memcpy(malloc(bytes ? bytes : 1), from, bytes), bytes};
            capture.copies = realloc(capture.copies, (capture.many + 1) * sizeof(HostCopy));
            capture.copies[capture.many++] = one;
        }
    }
    memmove(to, from, bytes);
    if (kind == DEVICE_TO_HOST) make_finite(to, bytes);
    return OK;
}
Status cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return copy(to, from, bytes, kind, 1, NULL); }
Status cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Handle stream) {
    return copy(to, from, bytes, kind, 0, stream);
}
Status cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height,
                         int kind, Handle stream) {
    on(stream, "cudaMemcpy2DAsync");
    for (size_t i = 0; i < height; i++) memmove(to + i * to_pitch, from + i * from_pitch, width);
    return OK;
}
Status cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
    memset(to, 0, bytes);
    return OK;
}
Status cudaMemset(void *to, int value, size_t bytes) { memset(to, value, bytes); return OK; }
Status cudaMemsetAsync(void *to, int value, size_t bytes, Handle stream) {
    on(stream, "cudaMemsetAsync");
    memset(to, value, bytes);
    return OK;
}
Status cudaMemPoolCreate(Handle *pool, const void *properties) { *pool = new_handle(); return OK; }
Status cudaMemPoolDestroy(Handle pool) { return OK; }
Status cudaMemPoolGetAttribute(Handle pool, int attribute, uint64_t *value) { *value = 0; return OK; }
Status cudaMemPoolSetAttribute(Handle pool, int attribute, void *value) { return OK; }
Status cudaMemPoolTrimTo(Handle pool, size_t bytes) { return OK; }

/* ---- Kernels ---- */

static struct { const void *address; const char *name; } *kernels;
static int many_kernels, room;

static const char *name_of(const void *address) {
    for (int i = 0; i < many_kernels; i++)
        if (kernels[i].address == address) return kernels[i].name;
    return "?";
}

void **__cudaRegisterFatBinary(void *binary) { static void *registered; return &registered; }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes, int constant,
                       int global) {}
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int threads, void *thread,
                            void *block, void *block_size, void *grid_size, int *warp) {
    if (many_kernels == room) kernels = realloc(kernels, (room = 2 * room + 65536) * sizeof *kernels);
    kernels[many_kernels].address = host;
    kernels[many_kernels++].name = name;
}

static __thread struct { Dim3 grid, block; size_t shared; Handle stream; } configured[16];
static __thread int many_configured;

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, Handle stream) {
    configured[many_configured].grid = grid, configured[many_configured].block = block;
    configured[many_configured].shared = shared, configured[many_configured++].stream = stream;
    return 0;
}
Status __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, Handle *stream) {
    many_configured--;
    *grid = configured[many_configured].grid, *block = configured[many_configured].block;
    *shared = configured[many_configured].shared, *stream = configured[many_configured].stream;
    return OK;
}

static Status launch(const void *kernel, Handle stream) {
    counts[LAUNCHES].value++;
    on(stream, "a kernel");
    if (captured_stream && pthread_equal(pthread_self(), capturing_thread) && stream != captured_stream)
        is_wrong("kernel %s on another stream than the captured one", name_of(kernel));
    if (recording) add_launch("%s", name_of(kernel));
    return OK;
}

/* Called by the other libraries for what computes. */
void counting_call(const char *function) {
    counts[LAUNCHES].value++;
    add_launch("%s", function);
}

Status cudaLaunchKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Handle stream) {
    return launch(kernel, stream);
}
Status cudaLaunchCooperativeKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Handle stream) {
    return launch(kernel, stream);
}
Status __cudaGetKernel(Handle *found, const void *kernel) { *found = (Handle)kernel; return OK; }
Status __cudaLaunchKernel(Handle kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Handle stream) {
    return launch(kernel, stream);
}
typedef struct { Dim3 grid, block; size_t shared; Handle stream; } Launch;
Status cudaLaunchKernelExC(const Launch *how, const void *kernel, void **arguments) { return launch(kernel, how->stream); }
Status cudaFuncGetAttributes(char *attributes, const void *kernel) {
    memset(attributes, 0, 144);
    int found[] = {1024, 32, capability, capability}; /* maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion */
    memcpy(attributes + 24, found, sizeof found);
    return OK;
}
Status cudaFuncSetAttribute(const void *kernel, int attribute, int value) { return OK; }
Status cudaKernelSetAttributeForDevice(Handle kernel, int attribute, int value, int device) { return OK; }
Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size, size_t shared,
                                                              unsigned flags) {
    *blocks = 2;
    return OK;
}
static long succeed(void) { return OK; }
Status cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                        int *result) {
    *found = (void *)succeed;
    if (result) *result = 0;
    return OK;
}
Status cudaLibraryLoadData(Handle *library, const void *code, void *options, void *values, unsigned many, void *others,
                           void *other_values, unsigned many_others) {
    *library = new_handle();
    return OK;
}
Status cudaLibraryGetKernel(Handle *kernel, Handle library, const char *name) { *kernel = new_handle(); return OK; }
Status cudaLibraryUnload(Handle library) { return OK; }
