#pragma once

// The kernel of the algorithm `few_channels`; few_channels.cu tells the idea and fills the arguments.

#include "cuda/primitives/async_copy.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/tensor_core.cuh"

namespace convswap {

constexpr int kFewChannelsWarps = 8;
constexpr int kFewChannelsThreads = 32 * kFewChannelsWarps;
constexpr int kQuad = 4;           // neighbouring output columns that one thread computes together
constexpr int kQuadsPerUnit = 16;  // the work of one warp at a time: two quads per thread, 64 pixels
constexpr int kSlotsPerOctet = 8;  // the depth of one tensor-core multiplication

struct FewChannelsArguments {
  const float* x;
  const float* w;
  const float* b;  // null without bias
  float* y;

  int batch, in_channels, out_channels, channels_per_group, filters_per_group;
  int input_height, input_width, output_height, output_width;
  int filter_height, filter_width, stride_height, stride_width, dilation_height, dilation_width;
  int pad_height, pad_width;

  // The tile of a block: `images` whole images, or a band of rows and columns of one.
  int tile_images, tile_rows, tile_quads;  // quads per row
  int bands, column_tiles, image_tiles;    // how many tiles cover the output's rows, columns and the batch
  FastDivisor quads_per_row, quads_per_image;

  // The tile's input in shared memory: image, channel, row, column phase, column.
  int staged_rows, phases, pitch, columns;  // `columns` of `pitch` words are filled
  int staged_words;                         // of one buffer

  int slots, octets;      // filter rows, and groups of eight of them
  int filter_blocks;      // of 8 * kTiles output channels, in one block
  int filter_splits;      // blocks of the grid that share the filters of a group
  int copy_words;         // 4, 2 or 1: the widest aligned copy into shared memory
  int store_words;        // likewise for the output
};

// A filter row (c, r, column phase): where its pixels lie, and its weights.
struct FilterRow {
  int offset;  // of its first tap from a pixel's word in shared memory
  int taps;    // 0 marks the filler of the last octet
  int weight;  // of its first tap within one filter
};

namespace few_channels {

template <int kWords>
__device__ inline void stage_row(const FewChannelsArguments& problem, float* target, const float* source,
                                 const float* anywhere, int first_column, bool row_inside, int lane) {
  for (int column = lane * kWords; column < problem.columns; column += 32 * kWords) {
    const int input_column = first_column + column;
    const bool inside = row_inside && input_column >= 0 && input_column < problem.input_width;
    copy_async<4 * kWords>(target + column, inside ? source + input_column : anywhere, inside);
  }
}

// With a column stride the columns of equal remainder lie together, so that neighbouring outputs read
// neighbouring words.
__device__ inline void stage_phases(const FewChannelsArguments& problem, float* target, const float* source,
                                    const float* anywhere, int first_column, bool row_inside, int lane) {
  for (int phase = 0; phase < problem.phases; ++phase) {
    for (int column = lane; column < problem.columns; column += 32) {
      const int input_column = first_column + column * problem.stride_width + phase;
      const bool inside = row_inside && input_column >= 0 && input_column < problem.input_width;
      copy_async<4>(target + phase * problem.pitch + column, inside ? source + input_column : anywhere, inside);
    }
  }
}

struct Tile {
  int n, first_row, first_column;  // of the output

  __device__ Tile(const FewChannelsArguments& problem, int index) {
    const int column_tile = index % problem.column_tiles;
    index /= problem.column_tiles;
    first_column = column_tile * problem.tile_quads * kQuad;
    first_row = index % problem.bands * problem.tile_rows;
    n = index / problem.bands * problem.tile_images;
  }
};

// Starts the copies of a tile's input. Padding and what lies outside the batch become zeros.
__device__ inline void stage_tile(const FewChannelsArguments& problem, const Tile& tile, int first_channel,
                                  float* buffer) {
  const int lane = threadIdx.x % 32;
  const int rows = problem.tile_images * problem.channels_per_group * problem.staged_rows;
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first_column = tile.first_column * problem.stride_width - problem.pad_width;
  for (int row = threadIdx.x / 32; row < rows; row += kFewChannelsWarps) {
    const int plane = row / problem.staged_rows;
    const int image = plane / problem.channels_per_group;
    const int channel = first_channel + plane - image * problem.channels_per_group;
    const int input_row = first_row + row - plane * problem.staged_rows;
    const bool inside = input_row >= 0 && input_row < problem.input_height && tile.n + image < problem.batch;
    const float* source = problem.x;
    if (inside) {
      source += ((static_cast<long long>(tile.n + image) * problem.in_channels + channel) *
                     problem.input_height + input_row) * problem.input_width;
    }
    float* target = buffer + row * problem.phases * problem.pitch;
    if (problem.stride_width != 1) {
      stage_phases(problem, target, source, problem.x, first_column, inside, lane);
    } else if (problem.copy_words == 4) {
      stage_row<4>(problem, target, source, problem.x, first_column, inside, lane);
    } else if (problem.copy_words == 2) {
      stage_row<2>(problem, target, source, problem.x, first_column, inside, lane);
    } else {
      stage_row<1>(problem, target, source, problem.x, first_column, inside, lane);
    }
  }
}

// One filter row per (c, r, phase) with every stride_width-th tap; with a column dilation one per tap.
__device__ inline FilterRow filter_row(const FewChannelsArguments& problem, int slot) {
  if (slot >= problem.slots) return {0, 0, 0};
  const bool single_taps = problem.dilation_width != 1;
  const int rows_of_width = single_taps ? problem.filter_width : problem.phases;
  const int within = slot % rows_of_width;
  const int line = slot / rows_of_width;  // (c, r)
  const int r = line % problem.filter_height;
  const int c = line / problem.filter_height;
  const int staged_row = (c * problem.staged_rows + r * problem.dilation_height) * problem.phases;
  FilterRow row;
  row.weight = line * problem.filter_width + within;
  if (single_taps) {
    const int column = within * problem.dilation_width;
    row.offset = (staged_row + column % problem.stride_width) * problem.pitch + column / problem.stride_width;
    row.taps = 1;
  } else {
    row.offset = (staged_row + within) * problem.pitch;
    row.taps = (problem.filter_width - within + problem.stride_width - 1) / problem.stride_width;
  }
  return row;
}

// Rounds the weights and lays them out as the tensor core reads them: for each (filter block, octet, tap,
// tile of 8 filters) the two values of every lane side by side.
template <int kTaps, int kTiles>
__device__ inline void stage_weights(const FewChannelsArguments& problem, const FilterRow* rows, int group,
                                     int first_filter, unsigned* weights) {
  const int filter_words = problem.channels_per_group * problem.filter_height * problem.filter_width;
  const int count = problem.filter_blocks * problem.octets * kTaps * kTiles * 64;
  for (int i = threadIdx.x; i < count; i += kFewChannelsThreads) {
    const int half = i % 2;
    const int lane = i / 2 % 32;
    const int tile = i / 64 % kTiles;
    const int tap = i / (64 * kTiles) % kTaps;
    const int block_octet = i / (64 * kTiles * kTaps);
    const int octet = block_octet % problem.octets;
    const int filter = first_filter + (block_octet / problem.octets * kTiles + tile) * 8 + lane / 4;
    const FilterRow row = rows[octet * kSlotsPerOctet + lane % 4 + 4 * half];
    float value = 0.0f;
    if (tap < row.taps && filter < problem.filters_per_group) {
      value = problem.w[(static_cast<long long>(group) * problem.filters_per_group + filter) * filter_words +
                        row.weight + tap * problem.stride_width];
    }
    weights[i] = round_to_tf32(value);
  }
}

// The words of a filter row that a quad's four pixels need between them, rounded; zeros for a filler row.
template <int kTaps>
struct Window {
  static constexpr int kNeeded = kTaps + kQuad - 1;
  static constexpr int kLoaded = (kNeeded + 3) / 4 * 4;
  unsigned words[kNeeded];

  __device__ void load(const float* source, bool is_row) {
    float raw[kLoaded];
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) raw[i] = 0.0f;
    if (is_row) {
      if constexpr (kTaps == 1) {
        // A single tap may start anywhere.
#pragma unroll
        for (int i = 0; i < kLoaded; ++i) raw[i] = source[i];
      } else {
#pragma unroll
        for (int i = 0; i < kLoaded; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(source + i);
          raw[i] = four.x, raw[i + 1] = four.y, raw[i + 2] = four.z, raw[i + 3] = four.w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kNeeded; ++i) words[i] = round_to_tf32(raw[i]);
  }
};

struct QuadPosition {
  int image, row, column;  // within the tile
  bool valid;

  __device__ QuadPosition(const FewChannelsArguments& problem, int quad, int quads) {
    valid = quad < quads;
    const unsigned index = valid ? quad : 0;
    image = problem.quads_per_image.quotient(index);
    const unsigned within = index - image * problem.quads_per_image.divisor;
    row = problem.quads_per_row.quotient(within);
    column = (within - row * problem.quads_per_row.divisor) * kQuad;
  }

  __device__ int word(const FewChannelsArguments& problem) const {
    return ((image * problem.channels_per_group * problem.staged_rows + row * problem.stride_height) *
            problem.phases) * problem.pitch + column;
  }
};

// Writes four neighbouring outputs, as wide as their alignment allows.
__device__ inline void store_quad(const FewChannelsArguments& problem, float* target, int columns,
                                  const float (&values)[kQuad]) {
  if (problem.store_words == 4 && columns >= 4) {
    *reinterpret_cast<float4*>(target) = make_float4(values[0], values[1], values[2], values[3]);
  } else if (problem.store_words >= 2) {
    if (columns >= 2) *reinterpret_cast<float2*>(target) = make_float2(values[0], values[1]);
    if (columns >= 4) *reinterpret_cast<float2*>(target + 2) = make_float2(values[2], values[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (i < columns) target[i] = values[i];
    }
  }
}

template <int kTaps, int kTiles, bool kRagged>
struct Unit {
  float sums[2][2][kTiles][4];  // quad, pair of pixels, tile of 8 filters, the tensor core's four

  __device__ void multiply(const FewChannelsArguments& problem, const float* const (&pixels)[2],
                           const FilterRow* rows, const unsigned* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[quad][pair][tile][i] = 0.0f;
        }
      }
    }
    const uint2* fragment = reinterpret_cast<const uint2*>(weights) + lane;
#pragma unroll 1
    for (int octet = 0; octet < problem.octets; ++octet) {
      const FilterRow low = rows[octet * kSlotsPerOctet + lane % 4];
      const FilterRow high = rows[octet * kSlotsPerOctet + lane % 4 + 4];
      Window<kTaps> windows[2][2];
#pragma unroll
      for (int quad = 0; quad < 2; ++quad) {
        windows[quad][0].load(pixels[quad] + low.offset, low.taps > 0);
        windows[quad][1].load(pixels[quad] + high.offset, high.taps > 0);
      }
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        // Where a filter row is shorter than kTaps its weight is zero, but zero times infinity is not.
        const bool low_tap = !kRagged || tap < low.taps;
        const bool high_tap = !kRagged || tap < high.taps;
        unsigned a[2][kQuad][2];
#pragma unroll
        for (int quad = 0; quad < 2; ++quad) {
#pragma unroll
          for (int i = 0; i < kQuad; ++i) {
            a[quad][i][0] = low_tap ? windows[quad][0].words[tap + i] : 0u;
            a[quad][i][1] = high_tap ? windows[quad][1].words[tap + i] : 0u;
          }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile, fragment += 32) {
          const uint2 b = *fragment;
#pragma unroll
          for (int quad = 0; quad < 2; ++quad) {
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
              multiply_add_tf32(sums[quad][pair][tile], a[quad][2 * pair][0], a[quad][2 * pair + 1][0],
                                a[quad][2 * pair][1], a[quad][2 * pair + 1][1], b.x, b.y);
            }
          }
        }
      }
    }
  }

  // The thread holds, for its quads, the filters 2t and 2t + 1 of each tile of 8.
  __device__ void store(const FewChannelsArguments& problem, const Tile& tile, const QuadPosition& position,
                        int quad, int group, int first_filter) const {
    const int p = tile.first_row + position.row;
    const int q = tile.first_column + position.column;
    const int n = tile.n + position.image;
    if (!position.valid || p >= problem.output_height || n >= problem.batch) return;
    const int columns = problem.output_width - q;
#pragma unroll
    for (int filter_tile = 0; filter_tile < kTiles; ++filter_tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int filter = first_filter + filter_tile * 8 + threadIdx.x % 4 * 2 + half;
        if (filter >= problem.filters_per_group) continue;
        const int k = group * problem.filters_per_group + filter;
        const float bias = problem.b == nullptr ? 0.0f : problem.b[k];
        const float values[kQuad] = {
            sums[quad][0][filter_tile][half] + bias, sums[quad][0][filter_tile][2 + half] + bias,
            sums[quad][1][filter_tile][half] + bias, sums[quad][1][filter_tile][2 + half] + bias};
        float* target = problem.y + ((static_cast<long long>(n) * problem.out_channels + k) *
                                         problem.output_height + p) * problem.output_width + q;
        store_quad(problem, target, columns, values);
      }
    }
  }
};

}  // namespace few_channels

// Persistent blocks: grid.x shares the tiles, grid.y the groups and, where the weights of a group do not fit,
// parts of its filters. Shared memory: the filter rows, the weights, two buffers of input.
template <int kTaps, int kTiles, bool kRagged>
__global__ void __launch_bounds__(kFewChannelsThreads) few_channels_kernel(const FewChannelsArguments problem) {
#if __CUDA_ARCH__ >= 800
  using namespace few_channels;
  extern __shared__ __align__(16) unsigned char shared[];
  FilterRow* rows = reinterpret_cast<FilterRow*>(shared);
  const int row_slots = problem.octets * kSlotsPerOctet;
  unsigned* weights = reinterpret_cast<unsigned*>(rows + row_slots) ;
  const int block_words = problem.octets * kTaps * kTiles * 64;
  float* buffers = reinterpret_cast<float*>(weights + problem.filter_blocks * block_words);

  const int group = blockIdx.y / problem.filter_splits;
  const int first_filter = blockIdx.y % problem.filter_splits * problem.filter_blocks * kTiles * 8;
  const int first_channel = group * problem.channels_per_group;
  const int tiles = problem.image_tiles * problem.bands * problem.column_tiles;
  const int lane = threadIdx.x % 32;

  int buffer = 0;
  stage_tile(problem, Tile(problem, blockIdx.x), first_channel, buffers);
  commit_copies();
  for (int slot = threadIdx.x; slot < row_slots; slot += kFewChannelsThreads) rows[slot] = filter_row(problem, slot);
  __syncthreads();
  stage_weights<kTaps, kTiles>(problem, rows, group, first_filter, weights);

  for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
    if (index + static_cast<int>(gridDim.x) < tiles) {
      stage_tile(problem, Tile(problem, index + gridDim.x), first_channel,
                 buffers + (buffer ^ 1) * problem.staged_words);
    }
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    const Tile tile(problem, index);
    const float* input = buffers + buffer * problem.staged_words;
    const int rows_left = min(problem.tile_rows, problem.output_height - tile.first_row);
    const int images_left = min(problem.tile_images, problem.batch - tile.n);
    const int quads = ((images_left - 1) * problem.tile_rows + rows_left) * problem.tile_quads;
    const int units = (quads + kQuadsPerUnit - 1) / kQuadsPerUnit;
    for (int item = threadIdx.x / 32; item < units * problem.filter_blocks; item += kFewChannelsWarps) {
      const int filter_block = item / units;
      const int first_quad = (item - filter_block * units) * kQuadsPerUnit + lane / 4;
      const QuadPosition positions[2] = {{problem, first_quad, quads}, {problem, first_quad + 8, quads}};
      const float* const pixels[2] = {input + positions[0].word(problem), input + positions[1].word(problem)};
      Unit<kTaps, kTiles, kRagged> unit;
      unit.multiply(problem, pixels, rows, weights + filter_block * block_words);
#pragma unroll
      for (int quad = 0; quad < 2; ++quad) {
        unit.store(problem, tile, positions[quad], quad, group, first_filter + filter_block * kTiles * 8);
      }
    }
    __syncthreads();
    buffer ^= 1;
  }
#endif
}

}  // namespace convswap
