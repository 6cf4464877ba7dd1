//go:build cuda && cgo

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

// CALL leaves the function with what failed.
#define CALL(name, ...) \
    do { \
        CUresult r_ = d->p_##name(__VA_ARGS__); \
        if (r_ != CUDA_SUCCESS) return (kv_result){(int)r_, #name, -1}; \
    } while (0)
#define ENTER() CALL(cuCtxSetCurrent, (CUcontext)ctx)

static const kv_result ok = {0, NULL, -1};

kv_driver *kv_open(const char *path, char *why, size_t n) {
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        snprintf(why, n, "%s", dlerror());
        return NULL;
    }
    kv_driver *d = calloc(1, sizeof *d);
    d->fake = dlsym(lib, "kvlend_fake_driver") != NULL;
#define LOAD(name) \
    if ((d->p_##name = (__typeof__(name) *)dlsym(lib, TEXT(name))) == NULL) { \
        snprintf(why, n, "%s has no %s: the driver is too old", path, TEXT(name)); \
        free(d); \
        dlclose(lib); \
        return NULL; \
    }
    KV_CALLS(LOAD)
#undef LOAD
    d->batch = dlsym(lib, "cuMemcpyBatchAsync");
    return d;
}

void kv_close(kv_driver *d) { free(d); }

kv_result kv_init(kv_driver *d, int *version, int *devices) {
    CALL(cuInit, 0);
    CALL(cuDriverGetVersion, version);
    CALL(cuDeviceGetCount, devices);
    d->batched = d->batch != NULL && *version >= 12080;
    return ok;
}

void kv_explain(kv_driver *d, int code, const char **name, const char **text) {
    *name = *text = NULL;
    d->p_cuGetErrorName((CUresult)code, name);
    d->p_cuGetErrorString((CUresult)code, text);
}

kv_result kv_device(kv_driver *d, int ordinal, int *dev, char *name, size_t n, unsigned char uuid[16], uint64_t *memory) {
    CUdevice handle;
    CUuuid id;
    size_t bytes;
    CALL(cuDeviceGet, &handle, ordinal);
    CALL(cuDeviceGetName, name, (int)n, handle);
    CALL(cuDeviceGetUuid, &id, handle);
    CALL(cuDeviceTotalMem, &bytes, handle);
    memcpy(uuid, id.bytes, 16);
    *dev = handle;
    *memory = bytes;
    return ok;
}

kv_result kv_attribute(kv_driver *d, int attribute, int dev, int *value) {
    CALL(cuDeviceGetAttribute, value, (CUdevice_attribute)attribute, dev);
    return ok;
}

kv_result kv_can_peer(kv_driver *d, int dev, int peer, int *can) {
    CALL(cuDeviceCanAccessPeer, can, dev, peer);
    return ok;
}

kv_result kv_ctx_retain(kv_driver *d, int dev, uint64_t *ctx) {
    CUcontext c;
    CALL(cuDevicePrimaryCtxRetain, &c, dev);
    *ctx = (uint64_t)c;
    return ok;
}

kv_result kv_ctx_release(kv_driver *d, int dev) {
    CALL(cuCtxSetCurrent, NULL);
    CALL(cuDevicePrimaryCtxRelease, dev);
    return ok;
}

kv_result kv_peer(kv_driver *d, uint64_t ctx, uint64_t peer) {
    ENTER();
    CUresult r = d->p_cuCtxEnablePeerAccess((CUcontext)peer, 0);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return (kv_result){(int)r, "cuCtxEnablePeerAccess", -1};
    return ok;
}

kv_result kv_module(kv_driver *d, uint64_t ctx, const char *ptx, char *log, size_t n, uint64_t *module, uint64_t *copy, uint64_t *hash) {
    ENTER();
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)n};
    CUmodule m;
    CUfunction f;
    log[0] = 0;
    CALL(cuModuleLoadDataEx, &m, ptx, 2, options, values);
    *module = (uint64_t)m;
    CALL(cuModuleGetFunction, &f, m, "kvlend_copy");
    *copy = (uint64_t)f;
    CALL(cuModuleGetFunction, &f, m, "kvlend_hash");
    *hash = (uint64_t)f;
    return ok;
}

kv_result kv_unload(kv_driver *d, uint64_t ctx, uint64_t module) {
    ENTER();
    CALL(cuModuleUnload, (CUmodule)module);
    return ok;
}

kv_result kv_alloc(kv_driver *d, uint64_t ctx, uint64_t size, uint64_t *at) {
    CUdeviceptr p;
    ENTER();
    CALL(cuMemAlloc, &p, size);
    *at = p;
    return ok;
}

kv_result kv_free(kv_driver *d, uint64_t ctx, uint64_t at) {
    ENTER();
    CALL(cuMemFree, at);
    return ok;
}

kv_result kv_host_alloc(kv_driver *d, uint64_t ctx, uint64_t size, void **at, uint64_t *dev) {
    CUdeviceptr p;
    ENTER();
    CALL(cuMemHostAlloc, at, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer, &p, *at, 0);
    *dev = p;
    return ok;
}

kv_result kv_host_free(kv_driver *d, uint64_t ctx, void *at) {
    ENTER();
    CALL(cuMemFreeHost, at);
    return ok;
}

kv_result kv_host_register(kv_driver *d, uint64_t ctx, void *at, uint64_t size, uint64_t *dev) {
    CUdeviceptr p;
    ENTER();
    CALL(cuMemHostRegister, at, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer, &p, at, 0);
    *dev = p;
    return ok;
}

kv_result kv_host_unregister(kv_driver *d, uint64_t ctx, void *at) {
    ENTER();
    CALL(cuMemHostUnregister, at);
    return ok;
}

kv_result kv_read(kv_driver *d, uint64_t ctx, void *dst, uint64_t src, uint64_t size) {
    ENTER();
    CALL(cuMemcpyDtoH, dst, src, size);
    return ok;
}

kv_result kv_write(kv_driver *d, uint64_t ctx, uint64_t dst, const void *src, uint64_t size) {
    ENTER();
    CALL(cuMemcpyHtoD, dst, src, size);
    // From pageable memory it may return before the bytes are there, and our streams
    // do not wait for the default one.
    CALL(cuStreamSynchronize, NULL);
    return ok;
}

kv_result kv_ipc_get(kv_driver *d, uint64_t ctx, uint64_t at, unsigned char handle[64]) {
    CUipcMemHandle h;
    ENTER();
    CALL(cuIpcGetMemHandle, &h, at);
    memcpy(handle, h.reserved, 64);
    return ok;
}

kv_result kv_ipc_open(kv_driver *d, uint64_t ctx, const unsigned char handle[64], uint64_t *at) {
    CUipcMemHandle h;
    CUdeviceptr p;
    memcpy(h.reserved, handle, 64);
    ENTER();
    CALL(cuIpcOpenMemHandle, &p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    *at = p;
    return ok;
}

kv_result kv_ipc_close(kv_driver *d, uint64_t ctx, uint64_t at) {
    ENTER();
    CALL(cuIpcCloseMemHandle, at);
    return ok;
}

static CUmemAllocationProp prop_of(int dev) {
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = dev;
    return p;
}

kv_result kv_vmm_granularity(kv_driver *d, int dev, uint64_t *size) {
    CUmemAllocationProp p = prop_of(dev);
    size_t n;
    CALL(cuMemGetAllocationGranularity, &n, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    *size = n;
    return ok;
}

kv_result kv_vmm_create(kv_driver *d, int dev, uint64_t size, uint64_t *handle) {
    CUmemAllocationProp p = prop_of(dev);
    CUmemGenericAllocationHandle h;
    CALL(cuMemCreate, &h, size, &p, 0);
    *handle = h;
    return ok;
}

kv_result kv_vmm_import(kv_driver *d, int fd, uint64_t *handle) {
    CUmemGenericAllocationHandle h;
    CALL(cuMemImportFromShareableHandle, &h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *handle = h;
    return ok;
}

kv_result kv_vmm_export(kv_driver *d, uint64_t handle, int *fd) {
    CALL(cuMemExportToShareableHandle, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return ok;
}

kv_result kv_vmm_map(kv_driver *d, uint64_t handle, uint64_t size, uint64_t *at) {
    CUdeviceptr p;
    CALL(cuMemAddressReserve, &p, size, 0, 0, 0);
    CUresult r = d->p_cuMemMap(p, size, 0, handle, 0);
    if (r != CUDA_SUCCESS) {
        d->p_cuMemAddressFree(p, size);
        return (kv_result){(int)r, "cuMemMap", -1};
    }
    *at = p;
    return ok;
}

kv_result kv_vmm_access(kv_driver *d, uint64_t at, uint64_t size, int dev) {
    CUmemAccessDesc a;
    memset(&a, 0, sizeof a);
    a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.location.id = dev;
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CALL(cuMemSetAccess, at, size, &a, 1);
    return ok;
}

kv_result kv_vmm_unmap(kv_driver *d, uint64_t at, uint64_t size) {
    CALL(cuMemUnmap, at, size);
    CALL(cuMemAddressFree, at, size);
    return ok;
}

kv_result kv_vmm_release(kv_driver *d, uint64_t handle) {
    CALL(cuMemRelease, handle);
    return ok;
}

kv_result kv_stream(kv_driver *d, uint64_t ctx, uint64_t *stream) {
    CUstream s;
    ENTER();
    // Non-blocking: the synchronous copies of other callers do not stop it.
    CALL(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
    *stream = (uint64_t)s;
    return ok;
}

kv_result kv_stream_destroy(kv_driver *d, uint64_t ctx, uint64_t stream) {
    ENTER();
    CALL(cuStreamDestroy, (CUstream)stream);
    return ok;
}

kv_result kv_event(kv_driver *d, uint64_t ctx, uint64_t *event) {
    CUevent e;
    ENTER();
    CALL(cuEventCreate, &e, CU_EVENT_BLOCKING_SYNC);
    *event = (uint64_t)e;
    return ok;
}

kv_result kv_event_destroy(kv_driver *d, uint64_t event) {
    CALL(cuEventDestroy, (CUevent)event);
    return ok;
}

kv_result kv_record(kv_driver *d, uint64_t ctx, uint64_t event, uint64_t stream) {
    ENTER();
    CALL(cuEventRecord, (CUevent)event, (CUstream)stream);
    return ok;
}

kv_result kv_stream_wait(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t event) {
    ENTER();
    CALL(cuStreamWaitEvent, (CUstream)stream, (CUevent)event, 0);
    return ok;
}

kv_result kv_sync(kv_driver *d, uint64_t ctx, uint64_t stream) {
    ENTER();
    CALL(cuStreamSynchronize, (CUstream)stream);
    return ok;
}

static int64_t nanos(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

kv_result kv_wait(kv_driver *d, uint64_t ctx, uint64_t event, int64_t spin_ns) {
    ENTER();
    int64_t end = nanos() + spin_ns;
    do {
        CUresult r = d->p_cuEventQuery((CUevent)event);
        if (r == CUDA_SUCCESS) return ok;
        if (r != CUDA_ERROR_NOT_READY) return (kv_result){(int)r, "cuEventQuery", -1};
    } while (nanos() < end);
    CALL(cuEventSynchronize, (CUevent)event);
    return ok;
}

kv_result kv_elapsed(kv_driver *d, uint64_t ctx, uint64_t from, uint64_t to, float *ms) {
    ENTER();
    CALL(cuEventElapsedTime, ms, (CUevent)from, (CUevent)to);
    return ok;
}

// Headers from 12.8 up to, not including, 13.0 declare the function in the form
// that drivers export under this name.
#if CUDA_VERSION >= 12080 && CUDA_VERSION < 13000
static kv_result engine_batch(kv_driver *d, CUstream stream, const kv_run *runs, size_t n) {
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0, failed = SIZE_MAX;
    CUdeviceptr *dst = malloc(n * (2 * sizeof *dst + sizeof(size_t)));
    CUdeviceptr *src = dst + n;
    size_t *len = (size_t *)(src + n);
    for (size_t i = 0; i < n; i++) dst[i] = runs[i].dst, src[i] = runs[i].src, len[i] = runs[i].len;
    CUresult r = ((__typeof__(cuMemcpyBatchAsync) *)d->batch)(dst, src, len, n, &attributes, &first, 1, &failed, stream);
    free(dst);
    return (kv_result){(int)r, "cuMemcpyBatchAsync", failed == SIZE_MAX ? -1 : (int64_t)failed};
}
#define KV_HAS_BATCH 1
#else
#define KV_HAS_BATCH 0
#endif

kv_result kv_engine(kv_driver *d, uint64_t ctx, uint64_t stream, const kv_run *runs, size_t n, int batched) {
    ENTER();
#if KV_HAS_BATCH
    if (batched) return engine_batch(d, (CUstream)stream, runs, n);
#endif
    for (size_t i = 0; i < n; i++) {
        CUresult r = d->p_cuMemcpyAsync(runs[i].dst, runs[i].src, runs[i].len, (CUstream)stream);
        if (r != CUDA_SUCCESS) return (kv_result){(int)r, "cuMemcpyAsync", (int64_t)i};
    }
    return ok;
}

// send_list fills a list and answers where the kernel is to read it.
static kv_result send_list(kv_driver *d, uint64_t stream, kv_list list, const void *entries, size_t bytes, int send, uint64_t *at) {
    memcpy(list.host, entries, bytes);
    *at = list.host_dev;
    if (send) {
        CALL(cuMemcpyAsync, list.dev, list.host_dev, bytes, (CUstream)stream);
        *at = list.dev;
    }
    return ok;
}

kv_result kv_gather(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t fn, kv_list list, const kv_run *runs, size_t n,
                    uint64_t parts, uint64_t part_bytes, unsigned blocks, int send) {
    uint64_t at, items = n * parts;
    ENTER();
    kv_result r = send_list(d, stream, list, runs, n * sizeof *runs, send, &at);
    if (r.code != 0) return r;
    void *params[] = {&at, &items, &parts, &part_bytes};
    CALL(cuLaunchKernel, (CUfunction)fn, blocks, 1, 1, 256, 1, 1, 0, (CUstream)stream, params, NULL);
    return ok;
}

kv_result kv_hash(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t fn, kv_list list, const kv_range *ranges, size_t n,
                  uint64_t sums, unsigned blocks, int send) {
    uint64_t at, items = n;
    ENTER();
    kv_result r = send_list(d, stream, list, ranges, n * sizeof *ranges, send, &at);
    if (r.code != 0) return r;
    void *params[] = {&at, &items, &sums};
    CALL(cuLaunchKernel, (CUfunction)fn, blocks, 1, 1, 256, 1, 1, 0, (CUstream)stream, params, NULL);
    return ok;
}

kv_result kv_wipe(kv_driver *d, uint64_t ctx, uint64_t stream, const kv_range *ranges, size_t n) {
    ENTER();
    for (size_t i = 0; i < n; i++) {
        CUresult r = d->p_cuMemsetD8Async(ranges[i].at, 0, ranges[i].len, (CUstream)stream);
        if (r != CUDA_SUCCESS) return (kv_result){(int)r, "cuMemsetD8Async", (int64_t)i};
    }
    return ok;
}
