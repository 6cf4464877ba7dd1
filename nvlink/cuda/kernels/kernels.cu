// The kernels of the CUDA fabric. tools/cuda/kernels compiles this file to
// kernels.ptx, which is embedded. All arithmetic is in functions without
// threads, so that the fake driver compiles the same text for the CPU.

#ifdef __CUDACC_RTC__
#define KV_FN static __device__ __forceinline__
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define KV_MUL_HI(a, b) __umul64hi(a, b)
#else
#define KV_FN static inline
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u32 x, y, z, w; } __attribute__((aligned(16), may_alias)) uint4;
#define KV_MUL_HI(a, b) ((u64)(((unsigned __int128)(a) * (b)) >> 64))
#endif

// One run of bytes to copy; package cuda's type run has this layout.
struct kv_run { u64 dst, src, len; };

// One range of bytes to hash or to wipe; package cuda's type ranged has this
// layout. For a wipe, seed is not used.
struct kv_range { u64 at, len, seed; };

// Lanes that copy one part together, and that hash one range together.
#define KV_WARP 32
#define KV_HASH_LANES 8

// kv_copy_lane is what lane of KV_WARP does of one part: 16-byte words where
// both ends allow it, 4-byte words or bytes elsewhere, bytes at both ends.
KV_FN void kv_copy_lane(u64 dst, u64 src, u64 len, u32 lane) {
    u64 misfit = (dst ^ src) & 15;
    u64 word = misfit == 0 ? 16 : (misfit & 3) == 0 ? 4 : 1;
    u64 head = (word - (dst & (word - 1))) & (word - 1);
    if (head > len) head = len;
    for (u64 i = lane; i < head; i += KV_WARP) ((u8 *)dst)[i] = ((const u8 *)src)[i];
    dst += head, src += head, len -= head;
    u64 n = len / word;
    if (word == 16) {
        uint4 *d = (uint4 *)dst;
        const uint4 *s = (const uint4 *)src;
        u64 i = lane;
        // Four loads in flight for each lane hide what a link takes to answer.
        for (; i + 3 * KV_WARP < n; i += 4 * KV_WARP) {
            uint4 a = s[i], b = s[i + KV_WARP], c = s[i + 2 * KV_WARP], e = s[i + 3 * KV_WARP];
            d[i] = a, d[i + KV_WARP] = b, d[i + 2 * KV_WARP] = c, d[i + 3 * KV_WARP] = e;
        }
        for (; i < n; i += KV_WARP) d[i] = s[i];
    } else if (word == 4) {
        for (u64 i = lane; i < n; i += KV_WARP) ((u32 *)dst)[i] = ((const u32 *)src)[i];
    } else {
        for (u64 i = lane; i < n; i += KV_WARP) ((u8 *)dst)[i] = ((const u8 *)src)[i];
    }
    for (u64 i = n * word + lane; i < len; i += KV_WARP) ((u8 *)dst)[i] = ((const u8 *)src)[i];
}

// kv_copy_item is what a lane does of work item number item: each run has parts
// items of at most part_bytes; those beyond a run's end are empty.
KV_FN void kv_copy_item(const struct kv_run *list, u32 parts, u64 part_bytes, u32 item, u32 lane) {
    struct kv_run r = list[item / parts];
    u64 off = (u64)(item % parts) * part_bytes;
    if (off >= r.len) return;
    u64 n = r.len - off;
    if (n > part_bytes) n = part_bytes;
    kv_copy_lane(r.dst + off, r.src + off, n, lane);
}

// xxh3, 64 bits, seeded, for inputs of more than 240 bytes, as specified in
// xxHash's doc/xxhash_spec.md: eight accumulators, one lane each.

#define KV_P32_1 2654435761ULL
#define KV_P32_2 2246822519ULL
#define KV_P32_3 3266489917ULL
#define KV_P64_1 11400714785074694791ULL
#define KV_P64_2 14029467366897019727ULL
#define KV_P64_3 1609587929392839161ULL
#define KV_P64_4 9650029242287828579ULL
#define KV_P64_5 2870177450012600261ULL

// kv_word reads a little-endian word at any address, in bytes where it must:
// sources are aligned but for the last stripe of an odd length.
KV_FN u64 kv_word(u64 at) {
    if ((at & 7) == 0) return *(const u64 *)at;
    u64 w = 0;
    for (u32 i = 0; i < 8; i++) w |= (u64)((const u8 *)at)[i] << (8 * i);
    return w;
}

// kv_secret is word i of the default secret (24 words), which the seed is added
// to (even words) and taken from (odd words).
KV_FN u64 kv_secret(u32 i, u64 seed) {
    static const
#ifdef __CUDACC_RTC__
    __device__
#endif
    u64 secret[24] = {
        0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
        0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL, 0x4c263a81e69035e0ULL,
        0xcb00c391bb52283cULL, 0xa32e531b8b65d088ULL, 0x4ef90da297486471ULL, 0xd8acdea946ef1938ULL,
        0x3f349ce33f76faa8ULL, 0x1d4f0bc7c7bbdcf9ULL, 0x3159b4cd4be0518aULL, 0x647378d9c97e9fc8ULL,
        0xc3ebd33483acc5eaULL, 0xeb6313faffa081c5ULL, 0x49daf0b751dd0d17ULL, 0x9e68d429265516d3ULL,
        0xfca1477d58be162bULL, 0xce31d07ad1b8f88fULL, 0x280416958f3acb45ULL, 0x7e404bbbcafbd7afULL,
    };
    return (i & 1) ? secret[i] - seed : secret[i] + seed;
}

// kv_secret_at is the word at any byte offset of the seeded secret.
KV_FN u64 kv_secret_at(u32 off, u64 seed) {
    u32 i = off / 8, shift = 8 * (off % 8);
    u64 lo = kv_secret(i, seed);
    if (shift == 0) return lo;
    return (lo >> shift) | (kv_secret(i + 1, seed) << (64 - shift));
}

// kv_stripe adds one stripe of 64 bytes to accumulator lane. k is the lane's
// word of the secret.
KV_FN u64 kv_stripe(u64 acc, u64 at, u32 lane, u64 k) {
    u64 keyed = kv_word(at + 8 * lane) ^ k;
    return acc + kv_word(at + 8 * (lane ^ 1)) + (keyed & 0xffffffffULL) * (keyed >> 32);
}

// kv_hash_lane is accumulator lane of the hash of a range of more than 240 bytes.
KV_FN u64 kv_hash_lane(u64 at, u64 len, u64 seed, u32 lane) {
    u64 acc;
    switch (lane) {
    case 0: acc = KV_P32_3; break;
    case 1: acc = KV_P64_1; break;
    case 2: acc = KV_P64_2; break;
    case 3: acc = KV_P64_3; break;
    case 4: acc = KV_P64_4; break;
    case 5: acc = KV_P32_2; break;
    case 6: acc = KV_P64_5; break;
    default: acc = KV_P32_1;
    }
    u64 end = at + len;
    u64 blocks = (len - 1) / 1024;
    u64 key[16];
    for (u32 i = 0; i < 16; i++) key[i] = kv_secret(i + lane, seed);
    u64 last = kv_secret(16 + lane, seed); // of the scramble
    for (; blocks > 0; blocks--, at += 1024) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
        for (u32 i = 0; i < 16; i++) acc = kv_stripe(acc, at + 64 * i, lane, key[i]);
        acc = (acc ^ (acc >> 47) ^ last) * KV_P32_1;
    }
    u32 stripes = (u32)((end - 1 - at) / 64);
    for (u32 i = 0; i < stripes; i++) acc = kv_stripe(acc, at + 64 * i, lane, kv_secret(i + lane, seed));
    return kv_stripe(acc, end - 64, lane, kv_secret_at(121 + 8 * lane, seed));
}

// kv_hash_end folds the eight accumulators into the hash.
KV_FN u64 kv_hash_end(const u64 *acc, u64 len, u64 seed) {
    u64 h = len * KV_P64_1;
    for (u32 i = 0; i < 8; i += 2) {
        u64 a = acc[i] ^ kv_secret_at(11 + 8 * i, seed), b = acc[i + 1] ^ kv_secret_at(19 + 8 * i, seed);
        h += (a * b) ^ KV_MUL_HI(a, b);
    }
    h ^= h >> 37;
    h *= 0x165667919e3779f9ULL;
    return h ^ (h >> 32);
}

#ifdef __CUDACC_RTC__

// A warp for each item, the grid's warps over all items. items is below 2^31.
extern "C" __global__ void kvlend_copy(const struct kv_run *list, u64 items, u64 parts, u64 part_bytes) {
    u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / KV_WARP, warps = gridDim.x * blockDim.x / KV_WARP;
    for (u32 item = warp; item < (u32)items; item += warps)
        kv_copy_item(list, (u32)parts, part_bytes, item, threadIdx.x % KV_WARP);
}

// KV_HASH_LANES threads for each range. Blocks have at most 256 threads.
extern "C" __global__ void kvlend_hash(const struct kv_range *list, u64 items, u64 *sums) {
    __shared__ u64 accs[256];
    u32 group = (blockIdx.x * blockDim.x + threadIdx.x) / KV_HASH_LANES, groups = gridDim.x * blockDim.x / KV_HASH_LANES;
    u32 lane = threadIdx.x % KV_HASH_LANES;
    u32 rounds = ((u32)items + groups - 1) / groups;
    // All threads take part in each round: they meet at the barriers.
    for (u32 r = 0; r < rounds; r++) {
        u32 item = group + r * groups;
        struct kv_range a = {0, 0, 0};
        if (item < (u32)items) {
            a = list[item];
            accs[threadIdx.x] = kv_hash_lane(a.at, a.len, a.seed, lane);
        }
        __syncthreads();
        if (item < (u32)items && lane == 0) sums[item] = kv_hash_end(accs + threadIdx.x, a.len, a.seed);
        __syncthreads();
    }
}

#endif
