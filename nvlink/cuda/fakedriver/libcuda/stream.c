#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../kernels/kernels.cu"

// push takes o over. The context's sticky error refuses it.
CUresult push(CUstream s, op *o) {
    pthread_mutex_lock(&mu);
    CUresult r = s->ctx->err;
    if (s->ctx != current) r = CUDA_ERROR_INVALID_CONTEXT; // every call sets the stream's context first
    if (r == CUDA_SUCCESS) {
        if (s->tail != NULL) s->tail->next = o; else s->head = o;
        s->tail = o;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mu);
    if (r != CUDA_SUCCESS) free(o);
    return r;
}

static op *new_op(int kind) {
    op *o = calloc(1, sizeof *o);
    o->kind = kind;
    return o;
}

// paced copies in steps, so that a copy can be interrupted, at the pace that
// the environment says.
static void paced(char *dst, const char *src, uint64_t size) {
    const char *s = getenv("KVLEND_FAKE_BYTES_PER_SEC");
    double pace = s == NULL ? 0 : atof(s), began = now();
    if (pace <= 0) {
        memmove(dst, src, size);
        return;
    }
    for (uint64_t at = 0; at < size;) {
        uint64_t n = size - at < 65536 ? size - at : 65536;
        memmove(dst + at, src + at, n);
        at += n;
        double wait = began + (double)at / pace - now();
        if (wait > 0) {
            struct timespec t = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
            nanosleep(&t, NULL);
        }
    }
}

static CUresult run_copy(int dev, const u64 *a) {
    const struct kv_run *list = (const struct kv_run *)a[0];
    u64 items = a[1], parts = a[2], part = a[3];
    if (parts == 0 || items % parts != 0 || part == 0 || !reachable(dev, a[0], items / parts * sizeof *list)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (u64 i = 0; i < items / parts; i++)
        if (!reachable(dev, list[i].dst, list[i].len) || !reachable(dev, list[i].src, list[i].len)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (u64 item = 0; item < items; item++)
        for (u32 lane = 0; lane < KV_WARP; lane++) kv_copy_item(list, (u32)parts, part, (u32)item, lane);
    return CUDA_SUCCESS;
}

static CUresult run_hash(int dev, const u64 *a) {
    const struct kv_range *list = (const struct kv_range *)a[0];
    u64 items = a[1];
    u64 *sums = (u64 *)a[2];
    if (!reachable(dev, a[0], items * sizeof *list) || !reachable(dev, a[2], items * 8)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (u64 i = 0; i < items; i++) {
        if (!reachable(dev, list[i].at, list[i].len)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        u64 acc[KV_HASH_LANES];
        for (u32 lane = 0; lane < KV_HASH_LANES; lane++) acc[lane] = kv_hash_lane(list[i].at, list[i].len, list[i].seed, lane);
        sums[i] = kv_hash_end(acc, list[i].len, list[i].seed);
    }
    return CUDA_SUCCESS;
}

static CUresult execute(CUstream s, op *o) {
    int dev = s->ctx->dev;
    CUresult r;
    switch (o->kind) {
    case OP_COPY:
        if ((r = enter("async.copy")) != CUDA_SUCCESS) return r;
        if (!reachable(dev, o->dst, o->size) || !reachable(dev, o->src, o->size)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        paced((char *)o->dst, (const char *)o->src, o->size);
        return CUDA_SUCCESS;
    case OP_SET:
        if ((r = enter("async.set")) != CUDA_SUCCESS) return r;
        if (!reachable(dev, o->dst, o->size)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        memset((void *)o->dst, o->value, o->size);
        return CUDA_SUCCESS;
    case OP_KERNEL: {
        char name[64];
        snprintf(name, sizeof name, "async.%s", o->kernel);
        if ((r = enter(name)) != CUDA_SUCCESS) return r;
        return strcmp(o->kernel, "kvlend_copy") == 0 ? run_copy(dev, (const u64 *)o->args) : run_hash(dev, (const u64 *)o->args);
    }
    default:
        return CUDA_SUCCESS;
    }
}

// unref drops a reference; mu is held.
static void unref(CUevent e) {
    if (--e->refs == 0) free(e);
}

// finish takes note that an operation is over; mu is held.
static void finish(CUstream s, op *o, CUresult r) {
    if (r != CUDA_SUCCESS && s->ctx->err == CUDA_SUCCESS) s->ctx->err = r;
    if (o->kind == OP_RECORD && o->event->done < o->seq) {
        o->event->done = o->seq;
        o->event->at = now();
    }
    if (o->event != NULL) unref(o->event);
    free(o);
    s->busy = false;
    pthread_cond_broadcast(&changed);
}

static void *serve(void *arg) {
    CUstream s = arg;
    pthread_mutex_lock(&mu);
    for (;;) {
        while (s->head == NULL && !s->stop) pthread_cond_wait(&changed, &mu);
        if (s->head == NULL) break;
        op *o = s->head;
        s->head = o->next;
        if (s->head == NULL) s->tail = NULL;
        s->busy = true;
        while (o->kind == OP_WAIT && o->event->done < o->seq && s->ctx->err == CUDA_SUCCESS) pthread_cond_wait(&changed, &mu);
        CUresult r = CUDA_SUCCESS;
        if (s->ctx->err == CUDA_SUCCESS) {
            pthread_mutex_unlock(&mu);
            r = execute(s, o);
            pthread_mutex_lock(&mu);
        }
        finish(s, o, r);
    }
    pthread_mutex_unlock(&mu);
    return NULL;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE; // others wait for the NULL stream
    CUstream s = calloc(1, sizeof *s);
    s->ctx = current;
    if (pthread_create(&s->thread, NULL, serve, s) != 0) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = s;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    pthread_mutex_lock(&mu);
    s->stop = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mu);
    pthread_join(s->thread, NULL);
    free(s);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (s == NULL) { // the default stream
        land();
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&mu);
    while ((s->head != NULL || s->busy) && s->ctx->err == CUDA_SUCCESS) pthread_cond_wait(&changed, &mu);
    r = s->ctx->err;
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    op *o = new_op(OP_WAIT);
    pthread_mutex_lock(&mu);
    o->event = e, o->seq = e->recorded;
    e->refs++;
    pthread_mutex_unlock(&mu);
    return push(s, o);
}

CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    CUevent e = calloc(1, sizeof *e);
    e->ctx = current, e->refs = 1, e->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    *out = e;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent e) {
    CUresult r = enter(__func__);
    if (r != CUDA_SUCCESS) return r;
    pthread_mutex_lock(&mu);
    unref(e);
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (e->ctx != s->ctx) return CUDA_ERROR_INVALID_HANDLE;
    op *o = new_op(OP_RECORD);
    pthread_mutex_lock(&mu);
    o->event = e, o->seq = ++e->recorded;
    e->refs++;
    pthread_mutex_unlock(&mu);
    return push(s, o);
}

static CUresult state(CUevent e) {
    if (e->ctx->err != CUDA_SUCCESS) return e->ctx->err;
    return e->done >= e->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent e) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    pthread_mutex_lock(&mu);
    r = state(e);
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuEventSynchronize(CUevent e) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    pthread_mutex_lock(&mu);
    while ((r = state(e)) == CUDA_ERROR_NOT_READY) pthread_cond_wait(&changed, &mu);
    pthread_mutex_unlock(&mu);
    return r;
}

CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (!a->timing || !b->timing || a->recorded == 0 || b->recorded == 0) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&mu);
    r = state(a) != CUDA_SUCCESS ? state(a) : state(b);
    *ms = (float)((b->at - a->at) * 1e3);
    pthread_mutex_unlock(&mu);
    return r;
}

static CUresult copy_op(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream s) {
    if (s == NULL || size == 0) return CUDA_ERROR_INVALID_VALUE;
    op *o = new_op(OP_COPY);
    o->dst = dst, o->src = src, o->size = size;
    return push(s, o);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream s) {
    CUresult r = enter_ctx(__func__);
    return r != CUDA_SUCCESS ? r : copy_op(dst, src, size, s);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                            size_t *attrs_idxs, size_t num_attrs, size_t *fail_idx, CUstream s) {
    CUresult r = enter_ctx(__func__);
    *fail_idx = SIZE_MAX;
    if (r != CUDA_SUCCESS) return r;
    if (s == NULL || count == 0 || num_attrs != 1 || attrs_idxs[0] != 0 ||
        attrs[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if ((r = copy_op(dsts[i], srcs[i], sizes[i], s)) != CUDA_SUCCESS) {
            *fail_idx = i;
            return r;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t size, CUstream s) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (s == NULL || size == 0) return CUDA_ERROR_INVALID_VALUE;
    op *o = new_op(OP_SET);
    o->dst = dst, o->size = size, o->value = value;
    return push(s, o);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                        unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra) {
    CUresult r = enter_ctx(__func__);
    if (r != CUDA_SUCCESS) return r;
    if (s == NULL || extra != NULL || shared != 0 || gx == 0 || gx > 2147483647u || gy != 1 || gz != 1 || bx == 0 || bx > 256 ||
        bx % KV_WARP != 0 || by != 1 || bz != 1) return CUDA_ERROR_INVALID_VALUE;
    op *o = new_op(OP_KERNEL);
    o->kernel = f->name;
    for (int i = 0; i < f->args; i++) memcpy(&o->args[i], params[i], 8);
    return push(s, o);
}
