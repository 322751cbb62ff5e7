#pragma once

#include "conv/quantization.h"
#include "conv/small_floats.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Asynchronous matrix multiplication by a warpgroup (`wgmma.mma_async`): four consecutive warps, the first a
// multiple of four. For compute capability 9.0 only (CMake's architecture 90a).
//
// accumulators[kAccumulatorTiles][4], float or int for codes, are a thread's registers of a 64 x (8
// kAccumulatorTiles) matrix. An *accumulator tile* is 64 rows and 8 columns of it.

// Descriptor of a K-major matrix in shared memory without swizzle, 16 elements along K. It consists of *core
// matrices*: 8 rows of 16 bytes (8 elements along K), 128 contiguous bytes. Core matrices of further rows
// follow contiguously (stride byte offset 128). The core matrices of the second half of K begin `leading`
// times 16 bytes after those of the first (leading dimension byte offset), and may overlap them.
struct SmemDescriptor {
  unsigned low_word;  // start address and leading dimension byte offset, both in units of 16 bytes

  // `shared` is a multiple of 16 bytes.
  static __device__ SmemDescriptor at(const void* shared, unsigned leading) {
    return {shared_address(shared) >> 4 | leading << 16};
  }
  // The descriptor of an address that is `units` % 2^16 times 16 bytes higher, with `units` / 2^16 added to
  // the leading dimension offset. The addresses never carry into that offset.
  __device__ SmemDescriptor advanced(unsigned units) const { return {low_word + units}; }
  // The same descriptor from lane 0, for descriptors of which the compiler cannot prove that all lanes hold
  // the same. The compiler then keeps it in uniform registers, which wgmma requires, instead of moving it
  // there for every wgmma.
  __device__ SmemDescriptor warp_uniform() const { return {__shfl_sync(0xffffffffu, low_word, 0)}; }

  __device__ unsigned long long descriptor() const {
    constexpr unsigned kStrideOffset = 128 / 16;
    return low_word | static_cast<unsigned long long>(kStrideOffset) << 32;
  }
};

// Descriptor of a K-major matrix in shared memory whose rows have 128 bytes, with TMA's 128-byte swizzle:
// bits 4 to 6 of an address are combined with bits 7 to 9 by exclusive or. A wgmma reads 32 bytes of each
// row. The matrix may begin at any row, since the swizzle depends on addresses alone.
struct SwizzledDescriptor {
  unsigned low_word;  // start address in units of 16 bytes; the leading dimension byte offset has no meaning

  // `shared` is a multiple of 128 bytes.
  static __device__ SwizzledDescriptor at(const void* shared) {
    return {shared_address(shared) >> 4 | 1u << 16};
  }
  // The descriptor of an address that is `units` times 16 bytes higher.
  __device__ SwizzledDescriptor advanced(unsigned units) const { return {low_word + units}; }
  // As SmemDescriptor's.
  __device__ SwizzledDescriptor warp_uniform() const { return {__shfl_sync(0xffffffffu, low_word, 0)}; }

  __device__ unsigned long long descriptor() const {
    constexpr unsigned kStrideOffset = 1024 / 16, k128ByteSwizzle = 1u << 30;
    return low_word | static_cast<unsigned long long>(kStrideOffset | k128ByteSwizzle) << 32;
  }
};

// Keeps the compiler from moving accesses to the accumulators across this point, by naming them as operands.
// Called before the first wgmma of a sequence and after the wait for the last. If the compiler accessed the
// accumulators in between, it would wait after each wgmma.
template <int kAccumulatorTiles>
__device__ inline void wgmma_fence_operand(float (&accumulators)[kAccumulatorTiles][4]) {
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
    asm volatile(""
                 : "+f"(accumulators[t][0]), "+f"(accumulators[t][1]), "+f"(accumulators[t][2]),
                   "+f"(accumulators[t][3])::"memory");
  }
}
template <int kAccumulatorTiles>
__device__ inline void wgmma_fence_operand(int (&accumulators)[kAccumulatorTiles][4]) {
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
    asm volatile(""
                 : "+r"(accumulators[t][0]), "+r"(accumulators[t][1]), "+r"(accumulators[t][2]),
                   "+r"(accumulators[t][3])::"memory");
  }
}
// wgmma.fence alone, for a wgmma group before which no other instruction writes the accumulators.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <int kAccumulatorTiles>
__device__ inline void wgmma_fence(float (&accumulators)[kAccumulatorTiles][4]) {
  wgmma_fence_operand(accumulators);
  wgmma_fence();
}
// Closes the wgmma group: the wgmmas since the last commit. Called directly after the last wgmma, because a
// later commit made toeplitz slower (benchmarks/toeplitz.md, version 15).
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all wgmma groups of the warpgroup. Called before the accumulators are read.
template <typename Accumulator, int kAccumulatorTiles>
__device__ inline void wgmma_wait_all(Accumulator (&accumulators)[kAccumulatorTiles][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  wgmma_fence_operand(accumulators);
}
// Waits until at most kPending wgmma groups are in flight (`wgmma.wait_group`). The smem operands of the
// completed groups may then be overwritten. The accumulators may not be read yet.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kAccumulatorTiles>
__device__ inline void wgmma_commit_and_wait(float (&accumulators)[kAccumulatorTiles][4]) {
  wgmma_commit_group();
  wgmma_wait_all(accumulators);
}

// Commits the wgmmas so far, waits for them, and multiplies the accumulators by `factor`.
template <int kAccumulatorTiles>
__device__ inline void scale_accumulators(float (&accumulators)[kAccumulatorTiles][4], float factor) {
  wgmma_commit_and_wait(accumulators);
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] *= factor;
  }
  wgmma_fence(accumulators);
}

// accumulators (64 x 8 kAccumulatorTiles) += a (64 x 16) * transpose of b (8 kAccumulatorTiles x 16). Warp i
// of the four holds rows 16 i to 16 i + 15. In each accumulator tile, lane l holds columns 2 (l % 4) and
// 2 (l % 4) + 1 of rows l / 4 and l / 4 + 8 of the warp's 16.
template <typename Operand, int kAccumulatorTiles>
__device__ inline void wgmma(float (&accumulators)[kAccumulatorTiles][4], SmemDescriptor a, SmemDescriptor b);

template <typename Operand, int kAccumulatorTiles>
__device__ inline void wgmma(float (&accumulators)[kAccumulatorTiles][4], SwizzledDescriptor a,
                             SwizzledDescriptor b);

// The same for codes: a (64 x 32) has int8, b (8 kAccumulatorTiles x 32) int8 or uint8, the Operand.
template <typename Operand, int kAccumulatorTiles>
__device__ inline void wgmma(int (&accumulators)[kAccumulatorTiles][4], SwizzledDescriptor a,
                             SwizzledDescriptor b);

// wgmma with `a` in registers. Each register holds two neighbours along K. Registers 0 and 1 hold
// K = 2 (l % 4) and 2 (l % 4) + 1 of rows l / 4 and l / 4 + 8 of the warp's 16. Registers 2 and 3 hold the
// same rows at K + 8.
template <typename Operand, int kAccumulatorTiles>
__device__ inline void wgmma(float (&accumulators)[kAccumulatorTiles][4], const unsigned (&a)[4],
                             SmemDescriptor b);
// accumulators = a * b.
template <typename Operand, int kAccumulatorTiles>
__device__ inline void wgmma_overwrite(float (&accumulators)[kAccumulatorTiles][4], const unsigned (&a)[4],
                                       SmemDescriptor b);

// Operand type of TF32 wgmma: float32 in registers and shared memory, whose lower 13 bits are ignored. K is
// 8, and a core matrix is 8 rows of 4 numbers. Registers 0 and 1 of `a` hold K = l % 4 of rows l / 4 and
// l / 4 + 8 of the warp's 16. Registers 2 and 3 hold the same rows at K + 4.
struct Tf32 {};

// SS: both operands in shared memory; RS: `a` in registers (as in CUTLASS).
#define CONVSWAP_ACCUMULATOR float
#define CONVSWAP_REGISTER(accumulator) "+f"(accumulator)
#define CONVSWAP_INOUT(t)                                                       \
  CONVSWAP_REGISTER(accumulators[t][0]), CONVSWAP_REGISTER(accumulators[t][1]), \
      CONVSWAP_REGISTER(accumulators[t][2]), CONVSWAP_REGISTER(accumulators[t][3])
#define CONVSWAP_INOUT_2(t) CONVSWAP_INOUT(t), CONVSWAP_INOUT(t + 1)
#define CONVSWAP_INOUT_4(t) CONVSWAP_INOUT_2(t), CONVSWAP_INOUT_2(t + 2)
#define CONVSWAP_INOUT_8(t) CONVSWAP_INOUT_4(t), CONVSWAP_INOUT_4(t + 4)
#define CONVSWAP_INOUT_14 CONVSWAP_INOUT_8(0), CONVSWAP_INOUT_4(8), CONVSWAP_INOUT_2(12)
#define CONVSWAP_INOUT_15 CONVSWAP_INOUT_14, CONVSWAP_INOUT(14)
#define CONVSWAP_INOUT_16 CONVSWAP_INOUT_15, CONVSWAP_INOUT(15)
#define CONVSWAP_INOUT_20 CONVSWAP_INOUT_16, CONVSWAP_INOUT_4(16)
#define CONVSWAP_INOUT_24 CONVSWAP_INOUT_20, CONVSWAP_INOUT_4(20)
#define CONVSWAP_INOUT_26 CONVSWAP_INOUT_24, CONVSWAP_INOUT_2(24)
#define CONVSWAP_INOUT_27 CONVSWAP_INOUT_26, CONVSWAP_INOUT(26)
#define CONVSWAP_INOUT_28 CONVSWAP_INOUT_26, CONVSWAP_INOUT_2(26)
#define CONVSWAP_INOUT_29 CONVSWAP_INOUT_28, CONVSWAP_INOUT(28)
#define CONVSWAP_INOUT_30 CONVSWAP_INOUT_28, CONVSWAP_INOUT_2(28)
#define CONVSWAP_INOUT_32 CONVSWAP_INOUT_30, CONVSWAP_INOUT_2(30)
#define CONVSWAP_REGISTERS_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CONVSWAP_REGISTERS_4 CONVSWAP_REGISTERS_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CONVSWAP_REGISTERS_6 CONVSWAP_REGISTERS_4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CONVSWAP_REGISTERS_8 CONVSWAP_REGISTERS_6 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CONVSWAP_REGISTERS_10 CONVSWAP_REGISTERS_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CONVSWAP_REGISTERS_12 CONVSWAP_REGISTERS_10 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CONVSWAP_REGISTERS_14 CONVSWAP_REGISTERS_12 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define CONVSWAP_REGISTERS_15 CONVSWAP_REGISTERS_14 ", %56, %57, %58, %59"
#define CONVSWAP_REGISTERS_16 CONVSWAP_REGISTERS_15 ", %60, %61, %62, %63"
#define CONVSWAP_REGISTERS_20 \
  CONVSWAP_REGISTERS_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CONVSWAP_REGISTERS_24 \
  CONVSWAP_REGISTERS_20 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CONVSWAP_REGISTERS_26 CONVSWAP_REGISTERS_24 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define CONVSWAP_REGISTERS_27 CONVSWAP_REGISTERS_26 ", %104, %105, %106, %107"
#define CONVSWAP_REGISTERS_28 CONVSWAP_REGISTERS_26 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define CONVSWAP_REGISTERS_29 CONVSWAP_REGISTERS_28 ", %112, %113, %114, %115"
#define CONVSWAP_REGISTERS_30 CONVSWAP_REGISTERS_28 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CONVSWAP_REGISTERS_32 CONVSWAP_REGISTERS_30 ", %120, %121, %122, %123, %124, %125, %126, %127"
// Operands of a wgmma that accumulates and whose matrices are both K-major; TF32 and codes have no other
// order, and codes no signs.
#define CONVSWAP_K_MAJOR_Float16 ", 1, 1, 1, 0, 0"
#define CONVSWAP_K_MAJOR_BFloat16 ", 1, 1, 1, 0, 0"
#define CONVSWAP_K_MAJOR_Tf32 ", 1, 1, 1"
#define CONVSWAP_K_MAJOR_Int8 ", 1"
#define CONVSWAP_K_MAJOR_UInt8 ", 1"
#define CONVSWAP_WGMMA_OF(Descriptor, Operand, type, tiles, columns, registers, a_operand, b_operand, ...)  \
  template <>                                                                                               \
  __device__ inline void wgmma<Operand, tiles>(CONVSWAP_ACCUMULATOR(&accumulators)[tiles][4], Descriptor a, \
                                               Descriptor b) {                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns type " {" registers "}, " a_operand            \
                 ", " b_operand CONVSWAP_K_MAJOR_##Operand ";"                                              \
                 : __VA_ARGS__                                                                              \
                 : "l"(a.descriptor()), "l"(b.descriptor()));                                               \
  }
#define CONVSWAP_WGMMA_SS(Operand, type, tiles, columns, registers, a_operand, b_operand, ...)          \
  CONVSWAP_WGMMA_OF(SmemDescriptor, Operand, type, tiles, columns, registers, a_operand, b_operand,     \
                    __VA_ARGS__)                                                                        \
  CONVSWAP_WGMMA_OF(SwizzledDescriptor, Operand, type, tiles, columns, registers, a_operand, b_operand, \
                    __VA_ARGS__)
#define CONVSWAP_WGMMAS_SS(Operand, type)                                                               \
  CONVSWAP_WGMMA_SS(Operand, type, 2, "16", CONVSWAP_REGISTERS_2, "%8", "%9", CONVSWAP_INOUT_2(0))      \
  CONVSWAP_WGMMA_SS(Operand, type, 4, "32", CONVSWAP_REGISTERS_4, "%16", "%17", CONVSWAP_INOUT_4(0))    \
  CONVSWAP_WGMMA_SS(Operand, type, 6, "48", CONVSWAP_REGISTERS_6, "%24", "%25", CONVSWAP_INOUT_4(0),    \
                    CONVSWAP_INOUT_2(4))                                                                \
  CONVSWAP_WGMMA_SS(Operand, type, 8, "64", CONVSWAP_REGISTERS_8, "%32", "%33", CONVSWAP_INOUT_8(0))    \
  CONVSWAP_WGMMA_SS(Operand, type, 10, "80", CONVSWAP_REGISTERS_10, "%40", "%41", CONVSWAP_INOUT_8(0),  \
                    CONVSWAP_INOUT_2(8))                                                                \
  CONVSWAP_WGMMA_SS(Operand, type, 12, "96", CONVSWAP_REGISTERS_12, "%48", "%49", CONVSWAP_INOUT_8(0),  \
                    CONVSWAP_INOUT_4(8))                                                                \
  CONVSWAP_WGMMA_SS(Operand, type, 14, "112", CONVSWAP_REGISTERS_14, "%56", "%57", CONVSWAP_INOUT_14)   \
  CONVSWAP_WGMMA_SS(Operand, type, 15, "120", CONVSWAP_REGISTERS_15, "%60", "%61", CONVSWAP_INOUT_15)   \
  CONVSWAP_WGMMA_SS(Operand, type, 16, "128", CONVSWAP_REGISTERS_16, "%64", "%65", CONVSWAP_INOUT_16)   \
  CONVSWAP_WGMMA_SS(Operand, type, 20, "160", CONVSWAP_REGISTERS_20, "%80", "%81", CONVSWAP_INOUT_20)   \
  CONVSWAP_WGMMA_SS(Operand, type, 24, "192", CONVSWAP_REGISTERS_24, "%96", "%97", CONVSWAP_INOUT_24)   \
  CONVSWAP_WGMMA_SS(Operand, type, 26, "208", CONVSWAP_REGISTERS_26, "%104", "%105", CONVSWAP_INOUT_26) \
  CONVSWAP_WGMMA_SS(Operand, type, 27, "216", CONVSWAP_REGISTERS_27, "%108", "%109", CONVSWAP_INOUT_27) \
  CONVSWAP_WGMMA_SS(Operand, type, 28, "224", CONVSWAP_REGISTERS_28, "%112", "%113", CONVSWAP_INOUT_28) \
  CONVSWAP_WGMMA_SS(Operand, type, 29, "232", CONVSWAP_REGISTERS_29, "%116", "%117", CONVSWAP_INOUT_29) \
  CONVSWAP_WGMMA_SS(Operand, type, 30, "240", CONVSWAP_REGISTERS_30, "%120", "%121", CONVSWAP_INOUT_30) \
  CONVSWAP_WGMMA_SS(Operand, type, 32, "256", CONVSWAP_REGISTERS_32, "%128", "%129", CONVSWAP_INOUT_32)
CONVSWAP_WGMMAS_SS(Float16, "k16.f32.f16.f16")
CONVSWAP_WGMMAS_SS(BFloat16, "k16.f32.bf16.bf16")
CONVSWAP_WGMMAS_SS(Tf32, "k8.f32.tf32.tf32")
// Integers have no columns beyond 128 that are no multiple of 16.
#undef CONVSWAP_ACCUMULATOR
#undef CONVSWAP_REGISTER
#define CONVSWAP_ACCUMULATOR int
#define CONVSWAP_REGISTER(accumulator) "+r"(accumulator)
#define CONVSWAP_WGMMA_CODES(Operand, type, tiles, columns, a_operand, b_operand, ...)             \
  CONVSWAP_WGMMA_OF(SwizzledDescriptor, Operand, type, tiles, columns, CONVSWAP_REGISTERS_##tiles, \
                    a_operand, b_operand, __VA_ARGS__)
#define CONVSWAP_WGMMAS_CODES(Operand, type)                                        \
  CONVSWAP_WGMMA_CODES(Operand, type, 8, "64", "%32", "%33", CONVSWAP_INOUT_8(0))   \
  CONVSWAP_WGMMA_CODES(Operand, type, 14, "112", "%56", "%57", CONVSWAP_INOUT_14)   \
  CONVSWAP_WGMMA_CODES(Operand, type, 16, "128", "%64", "%65", CONVSWAP_INOUT_16)   \
  CONVSWAP_WGMMA_CODES(Operand, type, 20, "160", "%80", "%81", CONVSWAP_INOUT_20)   \
  CONVSWAP_WGMMA_CODES(Operand, type, 24, "192", "%96", "%97", CONVSWAP_INOUT_24)   \
  CONVSWAP_WGMMA_CODES(Operand, type, 26, "208", "%104", "%105", CONVSWAP_INOUT_26) \
  CONVSWAP_WGMMA_CODES(Operand, type, 28, "224", "%112", "%113", CONVSWAP_INOUT_28) \
  CONVSWAP_WGMMA_CODES(Operand, type, 30, "240", "%120", "%121", CONVSWAP_INOUT_30) \
  CONVSWAP_WGMMA_CODES(Operand, type, 32, "256", "%128", "%129", CONVSWAP_INOUT_32)
CONVSWAP_WGMMAS_CODES(Int8, "k32.s32.s8.s8")
CONVSWAP_WGMMAS_CODES(UInt8, "k32.s32.s8.u8")
#undef CONVSWAP_ACCUMULATOR
#undef CONVSWAP_REGISTER
#define CONVSWAP_ACCUMULATOR float
#define CONVSWAP_REGISTER(accumulator) "+f"(accumulator)
// `scale_d`: "1" accumulates; "0" overwrites the accumulators, which are then outputs only.
#define CONVSWAP_WGMMA_RS(name, Operand, type, tiles, columns, registers, a_registers, b_operand, scale_d, \
                          ...)                                                                             \
  template <>                                                                                              \
  __device__ inline void name<Operand, tiles>(float (&accumulators)[tiles][4], const unsigned (&a)[4],     \
                                              SmemDescriptor b) {                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers       \
                 "}, {" a_registers "}, " b_operand ", " scale_d ", 1, 1, 0;"                              \
                 : __VA_ARGS__                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()));                       \
  }
#define CONVSWAP_WGMMA_RS_BOTH(Operand, type, tiles, columns, registers, a_registers, b_operand, inouts,    \
                               outputs)                                                                     \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, tiles, columns, registers, a_registers, b_operand, "1", inouts)   \
  CONVSWAP_WGMMA_RS(wgmma_overwrite, Operand, type, tiles, columns, registers, a_registers, b_operand, "0", \
                    outputs)
#define CONVSWAP_WGMMAS_RS(Operand, type)                                                                    \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, 4, "32", CONVSWAP_REGISTERS_4, "%16, %17, %18, %19", "%20", "1",   \
                    CONVSWAP_INOUT_4(0))                                                                     \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, 8, "64", CONVSWAP_REGISTERS_8, "%32, %33, %34, %35", "%36", "1",   \
                    CONVSWAP_INOUT_8(0))                                                                     \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, 12, "96", CONVSWAP_REGISTERS_12, "%48, %49, %50, %51", "%52", "1", \
                    CONVSWAP_INOUT_8(0), CONVSWAP_INOUT_4(8))                                                \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, 24, "192", CONVSWAP_REGISTERS_24, "%96, %97, %98, %99", "%100",    \
                    "1", CONVSWAP_INOUT_24)                                                                  \
  CONVSWAP_WGMMA_RS(wgmma, Operand, type, 32, "256", CONVSWAP_REGISTERS_32, "%128, %129, %130, %131",        \
                    "%132", "1", CONVSWAP_INOUT_32)                                                          \
  CONVSWAP_WGMMA_RS_BOTH(Operand, type, 15, "120", CONVSWAP_REGISTERS_15, "%60, %61, %62, %63", "%64",       \
                         CONVSWAP_INOUT_15, CONVSWAP_OUT_15)                                                 \
  CONVSWAP_WGMMA_RS_BOTH(Operand, type, 16, "128", CONVSWAP_REGISTERS_16, "%64, %65, %66, %67", "%68",       \
                         CONVSWAP_INOUT_16, CONVSWAP_OUT_16)
#define CONVSWAP_OUT(t) \
  "=f"(accumulators[t][0]), "=f"(accumulators[t][1]), "=f"(accumulators[t][2]), "=f"(accumulators[t][3])
#define CONVSWAP_OUT_5(t) \
  CONVSWAP_OUT(t), CONVSWAP_OUT(t + 1), CONVSWAP_OUT(t + 2), CONVSWAP_OUT(t + 3), CONVSWAP_OUT(t + 4)
#define CONVSWAP_OUT_15 CONVSWAP_OUT_5(0), CONVSWAP_OUT_5(5), CONVSWAP_OUT_5(10)
#define CONVSWAP_OUT_16 CONVSWAP_OUT_15, CONVSWAP_OUT(15)
CONVSWAP_WGMMAS_RS(Float16, "f16")
CONVSWAP_WGMMAS_RS(BFloat16, "bf16")
#define CONVSWAP_WGMMA_RS_TF32(tiles, columns, registers, a_registers, b_operand, ...)               \
  template <>                                                                                        \
  __device__ inline void wgmma<Tf32, tiles>(float (&accumulators)[tiles][4], const unsigned (&a)[4], \
                                            SmemDescriptor b) {                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k8.f32.tf32.tf32 {" registers          \
                 "}, {" a_registers "}, " b_operand ", 1, 1, 1;"                                     \
                 : __VA_ARGS__                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()));                 \
  }
CONVSWAP_WGMMA_RS_TF32(4, "32", CONVSWAP_REGISTERS_4, "%16, %17, %18, %19", "%20", CONVSWAP_INOUT_4(0))
CONVSWAP_WGMMA_RS_TF32(8, "64", CONVSWAP_REGISTERS_8, "%32, %33, %34, %35", "%36", CONVSWAP_INOUT_8(0))
CONVSWAP_WGMMA_RS_TF32(12, "96", CONVSWAP_REGISTERS_12, "%48, %49, %50, %51", "%52", CONVSWAP_INOUT_8(0),
                       CONVSWAP_INOUT_4(8))
CONVSWAP_WGMMA_RS_TF32(16, "128", CONVSWAP_REGISTERS_16, "%64, %65, %66, %67", "%68", CONVSWAP_INOUT_16)
CONVSWAP_WGMMA_RS_TF32(24, "192", CONVSWAP_REGISTERS_24, "%96, %97, %98, %99", "%100", CONVSWAP_INOUT_24)
CONVSWAP_WGMMA_RS_TF32(32, "256", CONVSWAP_REGISTERS_32, "%128, %129, %130, %131", "%132", CONVSWAP_INOUT_32)

}  // namespace convswap
