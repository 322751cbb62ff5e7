#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace convswap {

// Matrix multiplication by a warpgroup, four neighbouring warps that start at a multiple of four:
// instructions of compute capability 9.0, which code for that card alone may use (CMake's architecture 90a).

// The factor that a warpgroup reads from shared memory, 16 numbers deep. It consists of cores: 8 columns of 8
// neighbours along the depth, 128 contiguous bytes. Cores for further columns follow at once, then come those
// of the second half of the depth.
struct SharedMatrix {
  unsigned lower;  // the address and the distance of the halves, both in units of 16 bytes

  // `shared` is a multiple of 16 bytes.
  template <int kTiles>
  static __device__ SharedMatrix at(const void* shared) {
    constexpr unsigned kHalf = kTiles * 128 / 16;
    return {static_cast<unsigned>(__cvta_generic_to_shared(shared)) >> 4 | kHalf << 16};
  }
  // So many times 16 bytes further on: no sum of addresses carries into the field above it.
  __device__ SharedMatrix advanced(unsigned units) const { return {lower + units}; }

  __device__ unsigned long long descriptor() const {
    constexpr unsigned kNextColumns = 128 / 16;
    return lower | static_cast<unsigned long long>(kNextColumns) << 32;
  }
};

// 16 rows of 16 numbers, as a warp's registers hold them for a product. Lane l names row l % 16 and there the
// 16 bytes of the half l / 16 of the depth, at a multiple of 16 bytes.
struct WarpRows {
  unsigned words[4];

  __device__ void load(unsigned shared_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address)
                 : "memory");
  }
};

// Before the first product of several, and after the last. Naming the sums keeps the compiler from touching
// them in between, for which it would wait after each product.
template <int kCount, int kTiles>
__device__ inline void hold(float (&sums)[kCount][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kCount * kTiles; ++i) {
    float(&tile)[4] = sums[i / kTiles][i % kTiles];
    asm volatile("" : "+f"(tile[0]), "+f"(tile[1]), "+f"(tile[2]), "+f"(tile[3])::"memory");
  }
}
template <int kCount, int kTiles>
__device__ inline void begin_warpgroup_products(float (&sums)[kCount][kTiles][4]) {
  hold(sums);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
template <int kCount, int kTiles>
__device__ inline void finish_warpgroup_products(float (&sums)[kCount][kTiles][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
  hold(sums);
}

// sums (64 x 8 kTiles) += the rows of the four warps (64 x 16) * b (16 x 8 kTiles). Warp i holds rows 16 i to
// 16 i + 15 of the sums, and of a tile its lane l columns 2 (l % 4) and the next, of row l / 4 and of that
// plus 8.
template <typename Number, int kTiles>
__device__ inline void add_warpgroup_product(float (&sums)[kTiles][4], const WarpRows& a, SharedMatrix b);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CONVSWAP_SUMS(t) "+f"(sums[t][0]), "+f"(sums[t][1]), "+f"(sums[t][2]), "+f"(sums[t][3])
#define CONVSWAP_SUMS_2(t) CONVSWAP_SUMS(t), CONVSWAP_SUMS(t + 1)
#define CONVSWAP_SUMS_4(t) CONVSWAP_SUMS_2(t), CONVSWAP_SUMS_2(t + 2)
#define CONVSWAP_SUMS_8(t) CONVSWAP_SUMS_4(t), CONVSWAP_SUMS_4(t + 4)
#define CONVSWAP_NAMES_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CONVSWAP_NAMES_4 CONVSWAP_NAMES_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CONVSWAP_NAMES_6 CONVSWAP_NAMES_4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CONVSWAP_NAMES_8 CONVSWAP_NAMES_6 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CONVSWAP_NAMES_10 CONVSWAP_NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CONVSWAP_NAMES_12 CONVSWAP_NAMES_10 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CONVSWAP_PRODUCT(Number, type, tiles, columns, names, rows, b_name, ...)                           \
  template <>                                                                                              \
  __device__ inline void add_warpgroup_product<Number, tiles>(float (&sums)[tiles][4], const WarpRows& a,  \
                                                              SharedMatrix b) {                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names "}, {"    \
                 rows "}, " b_name ", 1, 1, 1, 0;"                                                         \
                 : __VA_ARGS__                                                                             \
                 : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]),                     \
                   "l"(b.descriptor()));                                                                   \
  }
#define CONVSWAP_PRODUCTS(Number, type)                                                                    \
  CONVSWAP_PRODUCT(Number, type, 2, "16", CONVSWAP_NAMES_2, "%8, %9, %10, %11", "%12", CONVSWAP_SUMS_2(0)) \
  CONVSWAP_PRODUCT(Number, type, 4, "32", CONVSWAP_NAMES_4, "%16, %17, %18, %19", "%20", CONVSWAP_SUMS_4(0)) \
  CONVSWAP_PRODUCT(Number, type, 6, "48", CONVSWAP_NAMES_6, "%24, %25, %26, %27", "%28", CONVSWAP_SUMS_4(0), CONVSWAP_SUMS_2(4)) \
  CONVSWAP_PRODUCT(Number, type, 8, "64", CONVSWAP_NAMES_8, "%32, %33, %34, %35", "%36", CONVSWAP_SUMS_8(0)) \
  CONVSWAP_PRODUCT(Number, type, 10, "80", CONVSWAP_NAMES_10, "%40, %41, %42, %43", "%44", CONVSWAP_SUMS_8(0), CONVSWAP_SUMS_2(8)) \
  CONVSWAP_PRODUCT(Number, type, 12, "96", CONVSWAP_NAMES_12, "%48, %49, %50, %51", "%52", CONVSWAP_SUMS_8(0), CONVSWAP_SUMS_4(8))
CONVSWAP_PRODUCTS(__half, "f16")
CONVSWAP_PRODUCTS(__nv_bfloat16, "bf16")
#undef CONVSWAP_PRODUCTS
#undef CONVSWAP_PRODUCT
#undef CONVSWAP_NAMES_12
#undef CONVSWAP_NAMES_10
#undef CONVSWAP_NAMES_8
#undef CONVSWAP_NAMES_6
#undef CONVSWAP_NAMES_4
#undef CONVSWAP_NAMES_2
#undef CONVSWAP_SUMS_8
#undef CONVSWAP_SUMS_4
#undef CONVSWAP_SUMS_2
#undef CONVSWAP_SUMS
#endif

}  // namespace convswap
