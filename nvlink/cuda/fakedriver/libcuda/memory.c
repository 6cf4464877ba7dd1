#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY (2UL << 20)

static range *ranges;
static uint64_t used[MAX_DEVICES];

// add_range takes a range into the list. Returns it.
static range *add_range(uint64_t at, uint64_t size, int dev, mem_kind kind, int fd) {
    range *r = calloc(1, sizeof *r);
    r->at = at, r->size = size, r->dev = dev, r->kind = kind, r->fd = fd;
    pthread_mutex_lock(&mu);
    r->next = ranges, ranges = r;
    pthread_mutex_unlock(&mu);
    return r;
}

// take removes the range of a kind that begins at an address; NULL: none does.
static range *take(uint64_t at, mem_kind kind) {
    pthread_mutex_lock(&mu);
    range **p = &ranges;
    while (*p != NULL && ((*p)->at != at || (*p)->kind != kind)) p = &(*p)->next;
    range *r = *p;
    if (r != NULL) *p = r->next;
    pthread_mutex_unlock(&mu);
    return r;
}

static bool has_access(const range *r, int dev) {
    switch (r->kind) {
    case MEM_DEVICE: return r->dev == dev || (contexts[dev].peers >> r->dev & 1);
    case MEM_IPC: return (r->access >> dev & 1) || (contexts[dev].peers >> r->dev & 1);
    case MEM_VMM: return r->access >> dev & 1;
    default: return true;
    }
}

bool reachable(int dev, uint64_t at, uint64_t size) {
    bool ok = false;
    pthread_mutex_lock(&mu);
    for (range *r = ranges; r != NULL && !ok; r = r->next)
        ok = at >= r->at && size <= r->size && at - r->at <= r->size - size && has_access(r, dev);
    pthread_mutex_unlock(&mu);
    return ok;
}

bool pinned(const void *at, uint64_t size) {
    uint64_t a = (uint64_t)at;
    bool ok = false;
    pthread_mutex_lock(&mu);
    for (range *r = ranges; r != NULL && !ok; r = r->next)
        ok = (r->kind == MEM_HOST || r->kind == MEM_REGISTERED) && a >= r->at && a + size <= r->at + r->size;
    pthread_mutex_unlock(&mu);
    return ok;
}

// What cuMemcpyHtoD has taken from pageable memory. A real driver may return before
// that is where it belongs, and streams that do not wait for the default stream may
// read what was there before: this one has it arrive as late as it may.
static struct { uint64_t dst, size; void *data; } late;

void land(void) {
    pthread_mutex_lock(&mu);
    if (late.data != NULL) memcpy((void *)late.dst, late.data, late.size);
    free(late.data);
    late.data = NULL;
    pthread_mutex_unlock(&mu);
}

static CUresult charge(int dev, uint64_t size) {
    pthread_mutex_lock(&mu);
    bool fits = used[dev] + size <= device_memory;
    if (fits) used[dev] += size;
    pthread_mutex_unlock(&mu);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void refund(int dev, uint64_t size) {
    pthread_mutex_lock(&mu);
    used[dev] -= size;
    pthread_mutex_unlock(&mu);
}

// memory_of makes the file behind device memory. Its name says whose it is.
static int memory_of(int dev, uint64_t size) {
    char name[64];
    snprintf(name, sizeof name, "kvlend-fake-gpu:%d", dev);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) close(fd), fd = -1;
    return fd;
}

// device_of is the device of such a file, -1: it is none.
static int device_of(int fd) {
    char path[64], name[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name - 1);
    int dev;
    if (n < 0) return -1;
    name[n] = 0;
    return sscanf(name, "/memfd:kvlend-fake-gpu:%d", &dev) == 1 ? dev : -1;
}

CUresult cuMemAlloc(CUdeviceptr *at, size_t size) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    int dev = current->dev;
    if ((r = charge(dev, size)) != CUDA_SUCCESS) return r;
    int fd = memory_of(dev, size);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(p, 0xA5, size < 4096 ? size : 4096); // memory of a GPU is not zero
    add_range((uint64_t)p, size, dev, MEM_DEVICE, fd);
    *at = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr at) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    land();
    range *m = take(at, MEM_DEVICE);
    if (m == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)m->at, m->size);
    close(m->fd);
    refund(m->dev, m->size);
    free(m);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **at, size_t size, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if ((flags & CU_MEMHOSTALLOC_PORTABLE) == 0) return CUDA_ERROR_INVALID_VALUE; // others could not reach it
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    add_range((uint64_t)p, size, -1, MEM_HOST, -1);
    *at = p;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *at) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    range *m = take((uint64_t)at, MEM_HOST);
    if (m == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap(at, m->size);
    free(m);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *at, size_t size, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if ((flags & CU_MEMHOSTREGISTER_PORTABLE) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (pinned(at, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    add_range((uint64_t)at, size, -1, MEM_REGISTERED, -1);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *at) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    range *m = take((uint64_t)at, MEM_REGISTERED);
    if (m == NULL) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    free(m);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *at, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (flags != 0 || !pinned(at, 1)) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)at;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (!reachable(current->dev, dst, size)) return CUDA_ERROR_INVALID_VALUE;
    land();
    if (pinned(src, size)) {
        memcpy((void *)dst, src, size);
        return CUDA_SUCCESS;
    }
    void *data = malloc(size);
    memcpy(data, src, size);
    pthread_mutex_lock(&mu);
    late.dst = dst, late.size = size, late.data = data;
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (!reachable(current->dev, src, size)) return CUDA_ERROR_INVALID_VALUE;
    land();
    memcpy(dst, (const void *)src, size);
    return CUDA_SUCCESS;
}

// CUDA IPC.

typedef struct { char magic[8]; int pid, fd, dev; uint64_t size; } ipc_handle;

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    ipc_handle h = {.magic = "kvlendI"};
    pthread_mutex_lock(&mu);
    for (range *m = ranges; m != NULL; m = m->next)
        if (m->at == at && m->kind == MEM_DEVICE) h.pid = getpid(), h.fd = m->fd, h.dev = m->dev, h.size = m->size;
    pthread_mutex_unlock(&mu);
    if (h.pid == 0) return CUDA_ERROR_INVALID_VALUE; // VMM memory, say
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *at, CUipcMemHandle in, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    ipc_handle h;
    memcpy(&h, &in, sizeof h);
    if (strncmp(h.magic, "kvlendI", 8) != 0 || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    bool open_already = false;
    pthread_mutex_lock(&mu);
    for (range *m = ranges; m != NULL; m = m->next)
        open_already = open_already || (m->kind == MEM_IPC && memcmp(m->ipc, &in, sizeof in) == 0);
    pthread_mutex_unlock(&mu);
    if (open_already) return CUDA_ERROR_ALREADY_MAPPED;
    if (peer_denied(current->dev, h.dev)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || device_of(fd) != h.dev) {
        if (fd >= 0) close(fd);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    void *p = mmap(NULL, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    range *m = add_range((uint64_t)p, h.size, h.dev, MEM_IPC, fd);
    m->access = 1u << current->dev;
    memcpy(m->ipc, &in, sizeof in);
    *at = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    land();
    range *m = take(at, MEM_IPC);
    if (m == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)m->at, m->size);
    close(m->fd);
    free(m);
    return CUDA_SUCCESS;
}

// Virtual memory management.

static CUresult check_prop(const CUmemAllocationProp *p) {
    if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    if (getenv("KVLEND_FAKE_NO_VMM") != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return p->location.id < 0 || p->location.id >= device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
    (void)option;
    CUresult r = enter(__func__);
    *out = GRANULARITY;
    return r != CUDA_SUCCESS ? r : check_prop(prop);
}

static void drop(handle *h) {
    pthread_mutex_lock(&mu);
    bool last = --h->refs == 0;
    pthread_mutex_unlock(&mu);
    if (!last) return;
    close(h->fd);
    refund(h->dev, h->size);
    free(h);
}

static handle *new_handle(int fd, int dev, uint64_t size) {
    handle *h = calloc(1, sizeof *h);
    h->fd = fd, h->dev = dev, h->size = size, h->refs = 1;
    return h;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    CUresult r = enter(__func__);
    if (r == CUDA_SUCCESS) r = check_prop(prop);
    if (r == CUDA_SUCCESS && (flags != 0 || size == 0 || size % GRANULARITY != 0)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) r = charge(prop->location.id, size);
    if (r != CUDA_SUCCESS) return r;
    int fd = memory_of(prop->location.id, size);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    char dirt[4096]; // memory of a GPU is not zero
    memset(dirt, 0xA5, sizeof dirt);
    if (pwrite(fd, dirt, sizeof dirt, 0) != sizeof dirt) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemGenericAllocationHandle)new_handle(fd, prop->location.id, size);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
    CUresult r = enter(__func__);
    if (r == CUDA_SUCCESS) drop((handle *)h);
    return r;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(((handle *)h)->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os, CUmemAllocationHandleType type) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    int dev = device_of((int)(intptr_t)os);
    if (dev < 0 || dev >= device_count) return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 0);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUmemGenericAllocationHandle)new_handle(fd, dev, (uint64_t)st.st_size);
    pthread_mutex_lock(&mu);
    used[dev] += (uint64_t)st.st_size; // what drop refunds
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (size == 0 || size % GRANULARITY != 0 || alignment != 0 || hint != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
    CUresult r = enter(__func__);
    if (r == CUDA_SUCCESS) munmap((void *)at, size);
    return r;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    handle *a = (handle *)h;
    if (offset != 0 || flags != 0 || size == 0 || size > a->size) return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    range *m = add_range(at, size, a->dev, MEM_VMM, -1);
    pthread_mutex_lock(&mu);
    m->handle = a;
    a->refs++;
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *list, size_t n) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    range *m;
    pthread_mutex_lock(&mu);
    for (m = ranges; m != NULL && (m->at != at || m->kind != MEM_VMM || m->size != size); m = m->next) {}
    if (m == NULL) r = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
            peer_denied(list[i].location.id, m->dev)) r = CUDA_ERROR_INVALID_DEVICE;
        else m->access |= 1u << list[i].location.id;
    }
    pthread_mutex_unlock(&mu);
    if (r == CUDA_SUCCESS && mprotect((void *)at, size, PROT_READ | PROT_WRITE) != 0) r = CUDA_ERROR_INVALID_VALUE;
    return r;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    land();
    range *m = take(at, MEM_VMM);
    if (m == NULL || m->size != size) return CUDA_ERROR_INVALID_VALUE;
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(m->handle);
    free(m);
    return CUDA_SUCCESS;
}
