#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Who opens the library finds this and says that it is not a real driver.
const char kvlend_fake_driver[] = "fake driver on host memory";

pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct CUctx_st contexts[MAX_DEVICES];
__thread CUcontext current;

static bool initialised;
int device_count;
uint64_t device_memory;
static int version;
static unsigned denied[MAX_DEVICES];

typedef struct { char name[64]; long left; CUresult code; } failure;
static failure failures[16];
static int failure_count;

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

bool peer_denied(int a, int b) { return a != b && (denied[a] >> b & 1); }

// injected counts a call and answers the code that it is to fail with. mu is held.
static CUresult injected(const char *name) {
    size_t n = strlen(name);
    if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v') n -= 3;
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < failure_count; i++) {
        failure *f = &failures[i];
        if (strlen(f->name) == n && strncmp(f->name, name, n) == 0 && --f->left == 0) r = f->code;
    }
    return r;
}

CUresult enter(const char *name) {
    pthread_mutex_lock(&mu);
    CUresult r = initialised ? injected(name) : CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult enter_ctx(const char *name) {
    CUresult r = enter(name);
    if (r != CUDA_SUCCESS) return r;
    if (current == NULL || current->refs == 0) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mu);
    r = current->err;
    pthread_mutex_unlock(&mu);
    return r;
}

static void read_failures(void) {
    failure_count = 0;
    const char *s = getenv("KVLEND_FAKE_FAIL");
    while (s != NULL && *s != 0 && failure_count < 16) {
        failure *f = &failures[failure_count];
        int code, used = 0;
        if (sscanf(s, "%63[^:]:%ld:%d%n", f->name, &f->left, &code, &used) != 3) break;
        f->code = (CUresult)code;
        failure_count++;
        s += used;
        if (*s == ',') s++;
    }
}

static void read_denied(void) {
    memset(denied, 0, sizeof denied);
    const char *s = getenv("KVLEND_FAKE_NO_PEER");
    int a, b, used;
    while (s != NULL && sscanf(s, "%d-%d%n", &a, &b, &used) == 2) {
        if (a >= 0 && b >= 0 && a < MAX_DEVICES && b < MAX_DEVICES) denied[a] |= 1u << b, denied[b] |= 1u << a;
        s += used;
        if (*s == ',') s++;
    }
}

static long setting(const char *name, long fallback) {
    const char *s = getenv(name);
    return s == NULL || *s == 0 ? fallback : atol(s);
}

CUresult cuInit(unsigned int flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    device_count = (int)setting("KVLEND_FAKE_DEVICES", 2);
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
    device_memory = (uint64_t)setting("KVLEND_FAKE_MEMORY", 1L << 30);
    version = (int)setting("KVLEND_FAKE_VERSION", 12080);
    read_denied();
    read_failures();
    // A lost context is as new: a test that lost one must not end the others.
    for (int i = 0; i < MAX_DEVICES; i++) contexts[i].dev = i, contexts[i].err = CUDA_SUCCESS;
    initialised = true;
    CUresult r = injected("cuInit");
    if (r == CUDA_SUCCESS && device_count < 1) r = CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuDriverGetVersion(int *v) {
    *v = version;
    return CUDA_SUCCESS;
}

static const struct { CUresult code; const char *name, *text; } errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static CUresult describe(CUresult code, const char **out, bool name) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            *out = name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **out) { return describe(code, out, true); }
CUresult cuGetErrorString(CUresult code, const char **out) { return describe(code, out, false); }

CUresult cuDeviceGetCount(int *count) {
    CUresult r = enter(__func__);
    *count = device_count;
    return r;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    CUresult r = enter(__func__);
    if (r == CUDA_SUCCESS && (ordinal < 0 || ordinal >= device_count)) r = CUDA_ERROR_INVALID_DEVICE;
    *dev = ordinal;
    return r;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    CUresult r = enter(__func__);
    snprintf(name, (size_t)len, "Fake GPU %d", dev);
    return r;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    CUresult r = enter(__func__);
    memcpy(uuid->bytes, "kvlend fake GPU ", 16);
    uuid->bytes[15] = (char)('0' + dev);
    return r;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev) {
    CUresult r = enter(__func__);
    *bytes = device_memory;
    (void)dev;
    return r;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
    CUresult r = enter(__func__);
    if (dev < 0 || dev >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = getenv("KVLEND_FAKE_NO_VMM") == NULL; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return r;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
    CUresult r = enter(__func__);
    if (dev < 0 || peer < 0 || dev >= device_count || peer >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer && !peer_denied(dev, peer);
    return r;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (dev < 0 || dev >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&mu);
    contexts[dev].refs++;
    pthread_mutex_unlock(&mu);
    *ctx = &contexts[dev];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    pthread_mutex_lock(&mu);
    if (dev < 0 || dev >= MAX_DEVICES || contexts[dev].refs == 0) r = CUDA_ERROR_INVALID_CONTEXT;
    else if (--contexts[dev].refs == 0) contexts[dev].err = CUDA_SUCCESS, contexts[dev].peers = 0;
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    CUresult r = enter(__func__);
    if (r == CUDA_SUCCESS) current = ctx;
    return r;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (peer == current || peer->refs == 0) return CUDA_ERROR_INVALID_DEVICE;
    if (peer_denied(current->dev, peer->dev)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&mu);
    if (current->peers >> peer->dev & 1) r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    current->peers |= 1u << peer->dev;
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, CUjit_option *options, void **values) {
    (void)n, (void)options, (void)values;
    static const struct CUfunc_st known[] = {{"kvlend_copy", 4}, {"kvlend_hash", 3}};
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (strstr(image, ".target sm_") == NULL) return CUDA_ERROR_INVALID_IMAGE;
    *module = calloc(1, sizeof **module);
    for (int i = 0; i < 2; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, ".visible .entry %s(", known[i].name);
        if (strstr(image, entry) != NULL) (*module)->functions[i] = known[i];
    }
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    CUresult r = enter_ctx(__func__);
    if (r == CUDA_SUCCESS) free(module);
    return r;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    for (int i = 0; i < 2; i++) {
        if (module->functions[i].name != NULL && strcmp(module->functions[i].name, name) == 0) {
            *function = &module->functions[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}
