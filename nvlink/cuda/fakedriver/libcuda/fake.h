// A libcuda.so.1 on host memory, for tests without a GPU. What a real driver
// refuses, it refuses, and more: a copy or kernel that touches memory which its
// device cannot reach ends in CUDA_ERROR_ILLEGAL_ADDRESS.
//
// The environment configures it, read at each cuInit:
//
//   KVLEND_FAKE_DEVICES         number of devices, 1 to 8; 2
//   KVLEND_FAKE_MEMORY          bytes of memory of each; 1 GiB
//   KVLEND_FAKE_NO_PEER         pairs without peer access: "0-1,0-2"
//   KVLEND_FAKE_NO_VMM          any text: no exportable VMM memory
//   KVLEND_FAKE_VERSION         of the driver: 12080
//   KVLEND_FAKE_BYTES_PER_SEC   the pace of copies; as fast as they go
//   KVLEND_FAKE_FAIL            "NAME:N:CODE,...": the Nth call of a function
//                               from now on answers CODE; with a NAME of
//                               "async.copy", "async.kvlend_copy" and so on the
//                               Nth execution on a stream fails.
#ifndef KVLEND_FAKE_H
#define KVLEND_FAKE_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8

typedef enum { MEM_DEVICE, MEM_VMM, MEM_HOST, MEM_REGISTERED, MEM_IPC } mem_kind;

// A range of addresses that the driver knows.
typedef struct range {
    struct range *next;
    uint64_t at, size;
    int dev;         // that holds it; -1: host
    mem_kind kind;
    unsigned access; // MEM_VMM: bits of devices; MEM_IPC: of the context that opened it
    int fd;          // behind it, -1: none
    struct handle *handle; // MEM_VMM
    char ipc[64];    // MEM_IPC: the handle
} range;

// A VMM allocation.
typedef struct handle {
    int fd, dev, refs;
    uint64_t size;
} handle;

struct CUctx_st {
    int dev, refs;
    unsigned peers; // bits of devices
    CUresult err;   // sticky
};

struct CUevent_st {
    CUcontext ctx;
    uint64_t recorded, done; // sequence numbers
    double at;               // seconds, of done
    int refs;
    bool timing;
};

typedef struct op {
    struct op *next;
    enum { OP_COPY, OP_SET, OP_KERNEL, OP_RECORD, OP_WAIT } kind;
    uint64_t dst, src, size;
    unsigned char value;
    CUevent event;
    uint64_t seq;
    const char *kernel;
    uint64_t args[4];
    unsigned grid, block;
} op;

struct CUstream_st {
    CUcontext ctx;
    pthread_t thread;
    op *head, *tail;
    bool busy, stop;
};

struct CUfunc_st { const char *name; int args; };
struct CUmod_st { struct CUfunc_st functions[2]; };

// fake.c
extern pthread_mutex_t mu; // guards everything here
extern pthread_cond_t changed;
extern struct CUctx_st contexts[MAX_DEVICES];
extern __thread CUcontext current;
extern int device_count;
extern uint64_t device_memory; // of each
CUresult enter(const char *name);
CUresult enter_ctx(const char *name);
bool peer_denied(int a, int b);
double now(void);

// memory.c
bool reachable(int dev, uint64_t at, uint64_t size);
bool pinned(const void *at, uint64_t size);
void land(void); // what copies to devices have left to do

// stream.c
CUresult push(CUstream s, op *o);

#endif
