// What package cuda calls of the driver: a table of functions that is filled by
// dlopen, and a few functions that do several calls in one crossing from Go.
// Contexts, streams, events, functions and pointers are plain numbers to Go.
#ifndef KVLEND_DRIVER_H
#define KVLEND_DRIVER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

// Every function that a driver must have. The header says which version of a
// function its name stands for.
#define KV_CALLS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) \
    X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceTotalMem) \
    X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
    X(cuCtxSetCurrent) X(cuCtxEnablePeerAccess) \
    X(cuModuleLoadDataEx) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel) \
    X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) \
    X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuMemcpyHtoD) X(cuMemcpyDtoH) \
    X(cuMemcpyAsync) X(cuMemsetD8Async) \
    X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamWaitEvent) X(cuStreamSynchronize) \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) \
    X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) \
    X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)

typedef struct {
    int fake;    // it is the fake driver
    int batched; // cuMemcpyBatchAsync may be used
#define KV_FIELD(name) __typeof__(name) *p_##name;
    KV_CALLS(KV_FIELD)
#undef KV_FIELD
    void *batch; // cuMemcpyBatchAsync, NULL: the driver has none
} kv_driver;

// kv_run and kv_range have the layout that the kernels read.
typedef struct { uint64_t dst, src, len; } kv_run;
typedef struct { uint64_t at, len, seed; } kv_range;

// A list that kernels read: pinned host memory, and as much device memory that
// it is sent to when it is long.
typedef struct { void *host; uint64_t host_dev, dev; } kv_list;

// What failed: the code, the name of the call, and for lists the entry.
typedef struct { int code; const char *call; int64_t at; } kv_result;

kv_driver *kv_open(const char *path, char *why, size_t n);
// kv_close frees the table; a driver stays loaded.
void kv_close(kv_driver *d);

kv_result kv_init(kv_driver *d, int *version, int *devices);
void kv_explain(kv_driver *d, int code, const char **name, const char **text);
kv_result kv_device(kv_driver *d, int ordinal, int *dev, char *name, size_t n, unsigned char uuid[16], uint64_t *memory);
kv_result kv_attribute(kv_driver *d, int attribute, int dev, int *value);
kv_result kv_can_peer(kv_driver *d, int dev, int peer, int *can);

kv_result kv_ctx_retain(kv_driver *d, int dev, uint64_t *ctx);
kv_result kv_ctx_release(kv_driver *d, int dev);
kv_result kv_peer(kv_driver *d, uint64_t ctx, uint64_t peer);
kv_result kv_module(kv_driver *d, uint64_t ctx, const char *ptx, char *log, size_t n, uint64_t *module, uint64_t *copy, uint64_t *hash);
kv_result kv_unload(kv_driver *d, uint64_t ctx, uint64_t module);

kv_result kv_alloc(kv_driver *d, uint64_t ctx, uint64_t size, uint64_t *at);
kv_result kv_free(kv_driver *d, uint64_t ctx, uint64_t at);
kv_result kv_host_alloc(kv_driver *d, uint64_t ctx, uint64_t size, void **at, uint64_t *dev);
kv_result kv_host_free(kv_driver *d, uint64_t ctx, void *at);
kv_result kv_host_register(kv_driver *d, uint64_t ctx, void *at, uint64_t size, uint64_t *dev);
kv_result kv_host_unregister(kv_driver *d, uint64_t ctx, void *at);
kv_result kv_read(kv_driver *d, uint64_t ctx, void *dst, uint64_t src, uint64_t size);
kv_result kv_write(kv_driver *d, uint64_t ctx, uint64_t dst, const void *src, uint64_t size);

kv_result kv_ipc_get(kv_driver *d, uint64_t ctx, uint64_t at, unsigned char handle[64]);
kv_result kv_ipc_open(kv_driver *d, uint64_t ctx, const unsigned char handle[64], uint64_t *at);
kv_result kv_ipc_close(kv_driver *d, uint64_t ctx, uint64_t at);

kv_result kv_vmm_granularity(kv_driver *d, int dev, uint64_t *size);
kv_result kv_vmm_create(kv_driver *d, int dev, uint64_t size, uint64_t *handle);
kv_result kv_vmm_import(kv_driver *d, int fd, uint64_t *handle);
kv_result kv_vmm_export(kv_driver *d, uint64_t handle, int *fd);
kv_result kv_vmm_map(kv_driver *d, uint64_t handle, uint64_t size, uint64_t *at);
kv_result kv_vmm_access(kv_driver *d, uint64_t at, uint64_t size, int dev);
kv_result kv_vmm_unmap(kv_driver *d, uint64_t at, uint64_t size);
kv_result kv_vmm_release(kv_driver *d, uint64_t handle);

kv_result kv_stream(kv_driver *d, uint64_t ctx, uint64_t *stream);
kv_result kv_stream_destroy(kv_driver *d, uint64_t ctx, uint64_t stream);
kv_result kv_event(kv_driver *d, uint64_t ctx, uint64_t *event);
kv_result kv_event_destroy(kv_driver *d, uint64_t event);
kv_result kv_record(kv_driver *d, uint64_t ctx, uint64_t event, uint64_t stream);
kv_result kv_stream_wait(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t event);
kv_result kv_sync(kv_driver *d, uint64_t ctx, uint64_t stream);
// kv_wait asks for spin_ns, then blocks.
kv_result kv_wait(kv_driver *d, uint64_t ctx, uint64_t event, int64_t spin_ns);
kv_result kv_elapsed(kv_driver *d, uint64_t ctx, uint64_t from, uint64_t to, float *ms);

// kv_engine gives each run to the copy engine; batched: in one call.
kv_result kv_engine(kv_driver *d, uint64_t ctx, uint64_t stream, const kv_run *runs, size_t n, int batched);
// kv_gather copies runs with one kernel. The list has room for n entries of 24
// bytes and is not used again before the kernel is over.
kv_result kv_gather(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t fn, kv_list list, const kv_run *runs, size_t n,
                    uint64_t parts, uint64_t part_bytes, unsigned blocks, int send);
// kv_hash writes a checksum per range to sums, an address for the device.
kv_result kv_hash(kv_driver *d, uint64_t ctx, uint64_t stream, uint64_t fn, kv_list list, const kv_range *ranges, size_t n,
                  uint64_t sums, unsigned blocks, int send);
kv_result kv_wipe(kv_driver *d, uint64_t ctx, uint64_t stream, const kv_range *ranges, size_t n);

#endif
