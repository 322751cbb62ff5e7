#pragma once

#include "conv/small_floats.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Matrix multiplication by a warpgroup, four neighbouring warps that start at a multiple of four:
// instructions of compute capability 9.0, which code for that card alone may use (CMake's architecture 90a).

// A matrix in shared memory, 16 numbers deep, which consists of cores: 8 rows of 8 neighbours along the
// depth, 128 contiguous bytes. Cores for further rows follow at once; those for the second half of the depth
// begin `leading` times 16 bytes further on, and may share bytes with the first.
struct SmemDescriptor {
  unsigned lower;  // the address and the distance of the halves, both in units of 16 bytes

  // `shared` is a multiple of 16 bytes.
  static __device__ SmemDescriptor at(const void* shared, unsigned leading) {
    return {shared_address(shared) >> 4 | leading << 16};
  }
  // So many times 16 bytes further on: no sum of addresses carries into the field above it.
  __device__ SmemDescriptor advanced(unsigned units) const { return {lower + units}; }
  // The same, where the compiler does not see that all threads of the warp mean the same matrix: it then
  // keeps it in the registers that a warp shares, from which alone the tensor core takes it, and not in one
  // of each thread, to be moved there for every product.
  __device__ SmemDescriptor warp_uniform() const { return {__shfl_sync(0xffffffffu, lower, 0)}; }

  __device__ unsigned long long descriptor() const {
    constexpr unsigned kNextRows = 128 / 16;
    return lower | static_cast<unsigned long long>(kNextRows) << 32;
  }
};

// Before the first product of several, and after the last. Naming the sums keeps the compiler from touching
// them in between, for which it would wait after each product.
template <int kTiles>
__device__ inline void wgmma_fence_operand(float (&accumulators)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    asm volatile(""
                 : "+f"(accumulators[t][0]), "+f"(accumulators[t][1]), "+f"(accumulators[t][2]),
                   "+f"(accumulators[t][3])::"memory");
  }
}
// Of products the first of which sets the sums.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <int kTiles>
__device__ inline void wgmma_fence(float (&accumulators)[kTiles][4]) {
  wgmma_fence_operand(accumulators);
  wgmma_fence();
}
// After the last product, at once: most likely what is waited for is itself in the tensor core's queue, where
// products of other warps would come before it (benchmarks/toeplitz.md, version 15).
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Before the sums are read.
template <int kTiles>
__device__ inline void wgmma_wait_all(float (&accumulators)[kTiles][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  wgmma_fence_operand(accumulators);
}
// Until all but those products have come that were ended by the last so many calls, so that what the others
// were taken from may be overwritten; the sums may not be read yet.
template <int kCalls>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kCalls) : "memory");
}
// Both, where nothing is to be done meanwhile.
template <int kTiles>
__device__ inline void wgmma_commit_and_wait(float (&accumulators)[kTiles][4]) {
  wgmma_commit_group();
  wgmma_wait_all(accumulators);
}

// Multiplies by a factor what the products so far sum up to; others may follow.
template <int kTiles>
__device__ inline void scale_accumulators(float (&accumulators)[kTiles][4], float factor) {
  wgmma_commit_and_wait(accumulators);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] *= factor;
  }
  wgmma_fence(accumulators);
}

// sums (64 x 8 kTiles) += a (64 x 16) * b (8 kTiles x 16) transposed. Warp i of the four holds rows 16 i to
// 16 i + 15 of the sums, and of a tile its lane l columns 2 (l % 4) and the next, of row l / 4 and of that
// plus 8.
template <typename Number, int kTiles>
__device__ inline void wgmma(float (&accumulators)[kTiles][4], SmemDescriptor a, SmemDescriptor b);

// The same with `a` in registers, each of which holds two neighbours along the depth: those that begin at
// 2 (l % 4), of rows l / 4 and l / 4 + 8 of a warp's 16, then those of these rows 8 deeper.
template <typename Number, int kTiles>
__device__ inline void wgmma(float (&accumulators)[kTiles][4], const unsigned (&a)[4], SmemDescriptor b);
// The same for sums = a * b.
template <typename Number, int kTiles>
__device__ inline void wgmma_overwrite(float (&accumulators)[kTiles][4], const unsigned (&a)[4],
                                       SmemDescriptor b);

// The numbers of a product of TF32: float32 in registers and in shared memory, whose lower 13 bits do not
// count. It is eight deep: a core is 8 rows of 4 numbers, and of the numbers in registers the first two lie l
// % 4 deep, of rows l / 4 and l / 4 + 8 of a warp's 16, the others 4 deeper.
struct Tf32 {};

#define CONVSWAP_SUMS(t) \
  "+f"(accumulators[t][0]), "+f"(accumulators[t][1]), "+f"(accumulators[t][2]), "+f"(accumulators[t][3])
#define CONVSWAP_SUMS_2(t) CONVSWAP_SUMS(t), CONVSWAP_SUMS(t + 1)
#define CONVSWAP_SUMS_4(t) CONVSWAP_SUMS_2(t), CONVSWAP_SUMS_2(t + 2)
#define CONVSWAP_SUMS_8(t) CONVSWAP_SUMS_4(t), CONVSWAP_SUMS_4(t + 4)
#define CONVSWAP_SUMS_14 CONVSWAP_SUMS_8(0), CONVSWAP_SUMS_4(8), CONVSWAP_SUMS_2(12)
#define CONVSWAP_SUMS_15 CONVSWAP_SUMS_14, CONVSWAP_SUMS(14)
#define CONVSWAP_SUMS_16 CONVSWAP_SUMS_15, CONVSWAP_SUMS(15)
#define CONVSWAP_SUMS_20 CONVSWAP_SUMS_16, CONVSWAP_SUMS_4(16)
#define CONVSWAP_SUMS_24 CONVSWAP_SUMS_20, CONVSWAP_SUMS_4(20)
#define CONVSWAP_SUMS_26 CONVSWAP_SUMS_24, CONVSWAP_SUMS_2(24)
#define CONVSWAP_SUMS_28 CONVSWAP_SUMS_26, CONVSWAP_SUMS_2(26)
#define CONVSWAP_SUMS_30 CONVSWAP_SUMS_28, CONVSWAP_SUMS_2(28)
#define CONVSWAP_SUMS_32 CONVSWAP_SUMS_30, CONVSWAP_SUMS_2(30)
#define CONVSWAP_NAMES_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CONVSWAP_NAMES_4 CONVSWAP_NAMES_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CONVSWAP_NAMES_6 CONVSWAP_NAMES_4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CONVSWAP_NAMES_8 CONVSWAP_NAMES_6 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CONVSWAP_NAMES_10 CONVSWAP_NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CONVSWAP_NAMES_12 CONVSWAP_NAMES_10 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CONVSWAP_NAMES_14 CONVSWAP_NAMES_12 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define CONVSWAP_NAMES_15 CONVSWAP_NAMES_14 ", %56, %57, %58, %59"
#define CONVSWAP_NAMES_16 CONVSWAP_NAMES_15 ", %60, %61, %62, %63"
#define CONVSWAP_NAMES_20 \
  CONVSWAP_NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CONVSWAP_NAMES_24 \
  CONVSWAP_NAMES_20 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CONVSWAP_NAMES_26 CONVSWAP_NAMES_24 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define CONVSWAP_NAMES_28 CONVSWAP_NAMES_26 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define CONVSWAP_NAMES_30 CONVSWAP_NAMES_28 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CONVSWAP_NAMES_32 CONVSWAP_NAMES_30 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define CONVSWAP_PRODUCT(Number, type, tiles, columns, names, a_name, b_name, ...)               \
  template <>                                                                                    \
  __device__ inline void wgmma<Number, tiles>(float (&accumulators)[tiles][4], SmemDescriptor a, \
                                              SmemDescriptor b) {                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names \
                 "}, " a_name ", " b_name ", 1, 1, 1, 0, 0;"                                     \
                 : __VA_ARGS__                                                                   \
                 : "l"(a.descriptor()), "l"(b.descriptor()));                                    \
  }
#define CONVSWAP_PRODUCTS(Number, type)                                                          \
  CONVSWAP_PRODUCT(Number, type, 2, "16", CONVSWAP_NAMES_2, "%8", "%9", CONVSWAP_SUMS_2(0))      \
  CONVSWAP_PRODUCT(Number, type, 4, "32", CONVSWAP_NAMES_4, "%16", "%17", CONVSWAP_SUMS_4(0))    \
  CONVSWAP_PRODUCT(Number, type, 6, "48", CONVSWAP_NAMES_6, "%24", "%25", CONVSWAP_SUMS_4(0),    \
                   CONVSWAP_SUMS_2(4))                                                           \
  CONVSWAP_PRODUCT(Number, type, 8, "64", CONVSWAP_NAMES_8, "%32", "%33", CONVSWAP_SUMS_8(0))    \
  CONVSWAP_PRODUCT(Number, type, 10, "80", CONVSWAP_NAMES_10, "%40", "%41", CONVSWAP_SUMS_8(0),  \
                   CONVSWAP_SUMS_2(8))                                                           \
  CONVSWAP_PRODUCT(Number, type, 12, "96", CONVSWAP_NAMES_12, "%48", "%49", CONVSWAP_SUMS_8(0),  \
                   CONVSWAP_SUMS_4(8))                                                           \
  CONVSWAP_PRODUCT(Number, type, 14, "112", CONVSWAP_NAMES_14, "%56", "%57", CONVSWAP_SUMS_14)   \
  CONVSWAP_PRODUCT(Number, type, 15, "120", CONVSWAP_NAMES_15, "%60", "%61", CONVSWAP_SUMS_15)   \
  CONVSWAP_PRODUCT(Number, type, 16, "128", CONVSWAP_NAMES_16, "%64", "%65", CONVSWAP_SUMS_16)   \
  CONVSWAP_PRODUCT(Number, type, 20, "160", CONVSWAP_NAMES_20, "%80", "%81", CONVSWAP_SUMS_20)   \
  CONVSWAP_PRODUCT(Number, type, 24, "192", CONVSWAP_NAMES_24, "%96", "%97", CONVSWAP_SUMS_24)   \
  CONVSWAP_PRODUCT(Number, type, 26, "208", CONVSWAP_NAMES_26, "%104", "%105", CONVSWAP_SUMS_26) \
  CONVSWAP_PRODUCT(Number, type, 28, "224", CONVSWAP_NAMES_28, "%112", "%113", CONVSWAP_SUMS_28) \
  CONVSWAP_PRODUCT(Number, type, 30, "240", CONVSWAP_NAMES_30, "%120", "%121", CONVSWAP_SUMS_30) \
  CONVSWAP_PRODUCT(Number, type, 32, "256", CONVSWAP_NAMES_32, "%128", "%129", CONVSWAP_SUMS_32)
CONVSWAP_PRODUCTS(Float16, "f16")
CONVSWAP_PRODUCTS(BFloat16, "bf16")
// `adds`: 1, or 0 where the sums are set, which then are outputs alone.
#define CONVSWAP_HELD_PRODUCT(name, Number, type, tiles, columns, names, a_names, b_name, adds, ...)  \
  template <>                                                                                         \
  __device__ inline void name<Number, tiles>(float (&accumulators)[tiles][4], const unsigned (&a)[4], \
                                             SmemDescriptor b) {                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names      \
                 "}, {" a_names "}, " b_name ", " adds ", 1, 1, 0;"                                   \
                 : __VA_ARGS__                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()));                  \
  }
#define CONVSWAP_HELD_PRODUCTS_OF(Number, type, tiles, columns, names, a_names, b_name, accumulators,   \
                                  new_sums)                                                             \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, tiles, columns, names, a_names, b_name, "1", accumulators) \
  CONVSWAP_HELD_PRODUCT(wgmma_overwrite, Number, type, tiles, columns, names, a_names, b_name, "0", new_sums)
#define CONVSWAP_HELD_PRODUCTS(Number, type)                                                                 \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, 4, "32", CONVSWAP_NAMES_4, "%16, %17, %18, %19", "%20", "1",    \
                        CONVSWAP_SUMS_4(0))                                                                  \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, 8, "64", CONVSWAP_NAMES_8, "%32, %33, %34, %35", "%36", "1",    \
                        CONVSWAP_SUMS_8(0))                                                                  \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, 12, "96", CONVSWAP_NAMES_12, "%48, %49, %50, %51", "%52", "1",  \
                        CONVSWAP_SUMS_8(0), CONVSWAP_SUMS_4(8))                                              \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, 24, "192", CONVSWAP_NAMES_24, "%96, %97, %98, %99", "%100",     \
                        "1", CONVSWAP_SUMS_24)                                                               \
  CONVSWAP_HELD_PRODUCT(wgmma, Number, type, 32, "256", CONVSWAP_NAMES_32, "%128, %129, %130, %131", "%132", \
                        "1", CONVSWAP_SUMS_32)                                                               \
  CONVSWAP_HELD_PRODUCTS_OF(Number, type, 15, "120", CONVSWAP_NAMES_15, "%60, %61, %62, %63", "%64",         \
                            CONVSWAP_SUMS_15, CONVSWAP_NEW_15)                                               \
  CONVSWAP_HELD_PRODUCTS_OF(Number, type, 16, "128", CONVSWAP_NAMES_16, "%64, %65, %66, %67", "%68",         \
                            CONVSWAP_SUMS_16, CONVSWAP_NEW_16)
#define CONVSWAP_NEW(t) \
  "=f"(accumulators[t][0]), "=f"(accumulators[t][1]), "=f"(accumulators[t][2]), "=f"(accumulators[t][3])
#define CONVSWAP_NEW_5(t) \
  CONVSWAP_NEW(t), CONVSWAP_NEW(t + 1), CONVSWAP_NEW(t + 2), CONVSWAP_NEW(t + 3), CONVSWAP_NEW(t + 4)
#define CONVSWAP_NEW_15 CONVSWAP_NEW_5(0), CONVSWAP_NEW_5(5), CONVSWAP_NEW_5(10)
#define CONVSWAP_NEW_16 CONVSWAP_NEW_15, CONVSWAP_NEW(15)
CONVSWAP_HELD_PRODUCTS(Float16, "f16")
CONVSWAP_HELD_PRODUCTS(BFloat16, "bf16")
#define CONVSWAP_TENSOR_FLOAT32_PRODUCT(tiles, columns, names, a_names, b_name, ...)                   \
  template <>                                                                                          \
  __device__ inline void wgmma<Tf32, tiles>(float (&accumulators)[tiles][4], const unsigned (&a)[4],   \
                                            SmemDescriptor b) {                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k8.f32.tf32.tf32 {" names "}, {" a_names \
                 "}, " b_name ", 1, 1, 1;"                                                             \
                 : __VA_ARGS__                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()));                   \
  }
template <>
__device__ inline void wgmma<Tf32, 16>(float (&accumulators)[16][4], SmemDescriptor a, SmemDescriptor b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" CONVSWAP_NAMES_16
               "}, %64, %65, 1, 1, 1;"
               : CONVSWAP_SUMS_16
               : "l"(a.descriptor()), "l"(b.descriptor()));
}
CONVSWAP_TENSOR_FLOAT32_PRODUCT(4, "32", CONVSWAP_NAMES_4, "%16, %17, %18, %19", "%20", CONVSWAP_SUMS_4(0))
CONVSWAP_TENSOR_FLOAT32_PRODUCT(8, "64", CONVSWAP_NAMES_8, "%32, %33, %34, %35", "%36", CONVSWAP_SUMS_8(0))
CONVSWAP_TENSOR_FLOAT32_PRODUCT(12, "96", CONVSWAP_NAMES_12, "%48, %49, %50, %51", "%52", CONVSWAP_SUMS_8(0),
                                CONVSWAP_SUMS_4(8))
CONVSWAP_TENSOR_FLOAT32_PRODUCT(16, "128", CONVSWAP_NAMES_16, "%64, %65, %66, %67", "%68", CONVSWAP_SUMS_16)
CONVSWAP_TENSOR_FLOAT32_PRODUCT(24, "192", CONVSWAP_NAMES_24, "%96, %97, %98, %99", "%100", CONVSWAP_SUMS_24)
CONVSWAP_TENSOR_FLOAT32_PRODUCT(32, "256", CONVSWAP_NAMES_32, "%128, %129, %130, %131", "%132",
                                CONVSWAP_SUMS_32)

}  // namespace convswap
