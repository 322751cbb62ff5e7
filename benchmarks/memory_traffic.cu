// Time of the memory traffic of a layer, input and output, without the convolution.
//
//     nvcc -std=c++20 -O3 -arch=sm_90 -Icustom_op -o memory_traffic benchmarks/memory_traffic.cu
//     ./memory_traffic
//
// Covers three first layers of the course networks (batch 10,000, float32). The kernels read every input once
// and write every output once, with random data. The floor is bytes / (4.3 TB/s), as in the tables of
// convswap. The share of the floor that these kernels reach bounds that of a convolution kernel.
// `tile_by_tile` stores tiles from shared memory with cp.async.bulk, as `toeplitz` does:
//
//   rows, filters  of a tile; warpgroups of each multiprocessor, each with separate tiles
//   order          of tiles: "blocks" assigns neighbours to different multiprocessors, "warpgroups" to one
//   lines          "parts" stores rows unaligned, "whole" moves both ends of a store up to lines of 128 bytes
//   cache          "first": stored data have the L2 policy evict_first
//
// Needs compute capability 9.0 or newer.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "cuda/primitives/tma.cuh"

namespace {

constexpr long long kBatch = 10'000;
constexpr int kWarpgroup = 128;
constexpr int kLine = 32;  // elements
constexpr int kRuns = 3, kRepeats = 9;
constexpr double kTerabytesPerSecond = 4.3;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", cudaGetErrorName(status), cudaGetErrorString(status));
  std::exit(1);
}

struct Layer {
  const char* name;
  int filters, input_plane, output_height, output_width;

  __host__ __device__ int output_plane() const { return output_height * output_width; }
  double bytes() const {
    return 4.0 * kBatch * (input_plane + static_cast<double>(filters) * output_plane());
  }
};

struct Tiles {
  int rows, filters, warpgroups;
  bool neighbours_in_block, whole_lines, evict_first;
};

// A pseudorandom float in [0.5, 1): transfers of zeros could be faster.
__device__ float noise(unsigned i) { return __uint_as_float(0x3f000000u | (i * 2654435761u >> 9)); }

__global__ void fill(float* data, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    data[i] = noise(static_cast<unsigned>(i));
  }
}

// One block for each image: reads the whole image, then writes its outputs with ordinary stores.
__global__ void __launch_bounds__(512) image_by_image(Layer layer, const float4* x, float4* y) {
  const int input = layer.input_plane / 4, output = layer.filters * layer.output_plane() / 4;
  float4 sum{};
  for (int i = threadIdx.x; i < input; i += blockDim.x) {
    const float4 pixels = x[static_cast<long long>(blockIdx.x) * input + i];
    sum.x += pixels.x, sum.y += pixels.y, sum.z += pixels.z, sum.w += pixels.w;
  }
  for (int i = threadIdx.x; i < output; i += blockDim.x) {
    sum.x += static_cast<float>(i);
    y[static_cast<long long>(blockIdx.x) * output + i] = sum;
  }
}

// Elements of a filter's rows in shared memory, with padding to begin anywhere in a line and to end with a
// whole line.
__host__ __device__ int filter_stride(const Layer& layer, const Tiles& tiles) {
  return (tiles.rows * layer.output_width + 3 * kLine - 1) / kLine * kLine;
}

__global__ void __launch_bounds__(4 * kWarpgroup, 1)
    tile_by_tile(Layer layer, Tiles tiles, const float4* x, float* y) {
  extern __shared__ __align__(128) float shared[];
  const int warpgroup = threadIdx.x / kWarpgroup, thread = threadIdx.x % kWarpgroup,
            stride = gridDim.x * tiles.warpgroups;
  const int filter_elements = filter_stride(layer, tiles), plane = layer.output_plane();
  const int band_elements = tiles.rows * layer.output_width;
  const int bands = (plane + band_elements - 1) / band_elements;
  const int tile_input = layer.input_plane / 4 / bands;  // float4 elements of the input that a tile reads
  float* const staging = shared + warpgroup * tiles.filters * filter_elements;
  for (int i = thread; i < tiles.filters * filter_elements; i += kWarpgroup) {
    staging[i] = noise(i + blockIdx.x * 977);
  }
  convswap::fence_proxy_async();
  __syncthreads();

  float sum = 0;
  const int first = tiles.neighbours_in_block ? blockIdx.x * tiles.warpgroups + warpgroup
                                              : blockIdx.x + gridDim.x * warpgroup;
  for (long long tile = first; tile < kBatch * bands; tile += stride) {
    const long long n = tile / bands;
    const int band = static_cast<int>(tile % bands), begin = band * band_elements;
    const float4* const source = x + n * (layer.input_plane / 4) + band * tile_input;
    for (int i = thread; i < tile_input; i += kWarpgroup) sum += source[i].x;
    for (int k = 0; k < layer.filters; k += tiles.filters) {
      convswap::tma_store_wait_group_read();
      asm volatile("bar.sync %0, %1;" ::"r"(warpgroup + 1), "n"(kWarpgroup) : "memory");
      if (thread < min(tiles.filters, layer.filters - k)) {
        long long from = (n * layer.filters + k + thread) * plane + begin;
        long long to = from + min(band_elements, plane - begin);
        if (tiles.whole_lines) {
          if (band > 0) from = (from + kLine - 1) / kLine * kLine;
          if (band + 1 < bands) to = (to + kLine - 1) / kLine * kLine;
        }
        // cp.async.bulk needs multiples of 16 bytes; elements outside are not written here.
        from = (from + 3) / 4 * 4;
        convswap::tma_store_1d(y + from, staging + thread * filter_elements + from % kLine,
                             static_cast<unsigned>(to - from) / 4 * 16, tiles.evict_first);
      }
      convswap::tma_store_commit_group();
    }
  }
  convswap::tma_store_wait_group_read();
  if (sum == 0.5f) y[0] = sum;  // keeps the loads from being optimized away
}

// Median milliseconds of a run.
template <typename Run>
double milliseconds(Run run) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats; ++i) {
    check(cudaEventRecord(begin));
    for (int j = 0; j < kRuns; ++j) run();
    check(cudaEventRecord(end));
    check(cudaGetLastError()), check(cudaEventSynchronize(end));
    float time;
    check(cudaEventElapsedTime(&time, begin, end));
    times.push_back(time / kRuns);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

void print(const Layer& layer, const char* variant, double time) {
  const double floor = layer.bytes() / kTerabytesPerSecond * 1e-9;
  std::printf("%-13s %-52s %.3f ms, %2.0f %% of the floor\n", layer.name, variant, time, 100 * floor / time);
}

}  // namespace

int main() {
  cudaDeviceProp card;
  check(cudaGetDeviceProperties(&card, 0));
  if (card.major < 9) {
    std::fprintf(stderr, "needs compute capability 9.0 or newer; %s has %d.%d\n", card.name, card.major,
                 card.minor);
    return 2;
  }
  std::printf("%s, batch %lld, float32\n", card.name, kBatch);
  const Layer layers[] = {{"2019fa conv1", 12, 70 * 70, 66, 66},
                          {"2018fa conv1", 12, 72 * 72, 66, 66},
                          {"2020 conv1", 4, 86 * 86, 80, 80}};
  float *x, *y;
  check(cudaMalloc(&x, 4ll * kBatch * 86 * 86)), check(cudaMalloc(&y, 4ll * kBatch * 12 * 66 * 66));
  fill<<<1024, 512>>>(x, kBatch * 86 * 86);
  check(cudaFuncSetAttribute(tile_by_tile, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(card.sharedMemPerBlockOptin)));
  for (const Layer& layer : layers) {
    const auto input = reinterpret_cast<const float4*>(x);
    print(layer, "outputs alone, one after the other",
          milliseconds([&] { fill<<<1024, 512>>>(y, kBatch * layer.filters * layer.output_plane()); }));
    print(layer, "image by image",
          milliseconds([&] { image_by_image<<<kBatch, 512>>>(layer, input, reinterpret_cast<float4*>(y)); }));
    for (const auto& [rows, filters, warpgroups] :
         {std::tuple{22, 6, 4}, {17, 12, 3}, {27, 4, 4}, {33, 6, 3}, {80, 2, 3}}) {
      for (int flags : {0, 1, 3, 7, 5}) {
        Tiles tiles{std::min(rows, layer.output_height),
                    std::min(filters, layer.filters),
                    warpgroups,
                    (flags & 1) != 0,
                    (flags & 2) != 0,
                    (flags & 4) != 0};
        const size_t bytes = sizeof(float) * tiles.warpgroups * tiles.filters * filter_stride(layer, tiles);
        if (bytes > card.sharedMemPerBlockOptin) continue;
        char text[100];
        std::snprintf(text, sizeof text, "%d rows, %d filters, %d warpgroups; %s, %s%s", tiles.rows,
                      tiles.filters, tiles.warpgroups, tiles.neighbours_in_block ? "warpgroups" : "blocks",
                      tiles.whole_lines ? "whole" : "parts", tiles.evict_first ? ", first" : "");
        print(layer, text, milliseconds([&] {
                // One block on each multiprocessor, as in `toeplitz`, whose matrix fills the shared memory.
                tile_by_tile<<<card.multiProcessorCount, kWarpgroup * tiles.warpgroups,
                               card.sharedMemPerBlockOptin>>>(layer, tiles, input, y);
              }));
      }
    }
  }
}
