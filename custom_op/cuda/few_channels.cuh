#pragma once

// The kernel of the algorithm `few_channels`; few_channels.cu tells the idea and fills the arguments.

#include "cuda/few_channels_layout.h"
#include "cuda/primitives/async_copy.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/tensor_core.cuh"

namespace convswap {

struct FewChannelsArguments {
  const float* x;
  const float* w;
  const float* b;  // null without bias
  float* y;

  int batch, in_channels, out_channels, filters_per_group;
  int channels_per_group;  // in x
  int first_channel;       // of this pass, within the group
  int channels;            // of this pass
  bool accumulates;        // onto the sums of the passes before it
  long long input_words;   // of x
  int input_height, input_width, output_height, output_width;
  int filter_height, filter_width, stride_height, stride_width, dilation_height, dilation_width;
  int pad_height, pad_width;

  // The tile of a block: `tile_images` whole images, or a band of rows and columns of one.
  int tile_images, tile_rows, tile_quads;  // quads per row
  int bands, column_tiles, image_tiles;    // how many tiles cover the output's rows, columns and the batch
  FastDivisor quads_per_row, quads_per_image;

  // The copy of the tile's input as it comes, in rows of `raw_chunks` pieces of 16 bytes: image, channel,
  // row.
  int raw_rows;     // of one channel, whether inside the image or not
  int raw_columns;  // input columns that the tile covers, padding included
  FastDivisor raw_chunks, raw_rows_divisor, channels_divisor;

  // The input in pairs: image, plane, line, then (first, second) of each column side by side. A plane is one
  // or two channels, a line one row and column remainder. The second of a pair is the next channel, or the
  // row `row_distance` further down.
  bool pairs_channels;
  int row_distance;
  int planes;  // per image
  int phases;
  int line_words, plane_words, raw_words;
  FastDivisor column_pairs, lines_per_plane, planes_divisor, phases_divisor;

  int pairs;          // of filter rows
  int steps;          // of kPairsPerStep pairs
  int filter_blocks;  // of 16 * kTiles output channels, in one block
  int filter_splits;  // blocks of the grid that share the filters of a group
  FastDivisor filter_block_divisor;
  bool copies_16_bytes;  // x is aligned to them
  bool stores_quads;     // whole quads are aligned to 16 bytes in y
};

namespace few_channels {

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

// The part of the input that a tile reads.
struct InputWindow {
  int first_row, first_column;   // may lie in the padding
  int begin_column, end_column;  // inside the image

  __device__ InputWindow(const FewChannelsArguments& problem, const Tile& tile) {
    first_row = tile.first_row * problem.stride_height - problem.pad_height;
    first_column = tile.first_column * problem.stride_width - problem.pad_width;
    begin_column = max(0, first_column);
    end_column = min(problem.input_width, first_column + problem.raw_columns);
  }
};

// Where input row `row` of the tile begins in x, at the window's first column inside the image.
__device__ inline long long input_offset(const FewChannelsArguments& problem, const Tile& tile,
                                         const InputWindow& window, int image, int channel, int row) {
  return ((static_cast<long long>(tile.n + image) * problem.in_channels + channel) * problem.input_height +
          window.first_row + row) *
             problem.input_width +
         window.begin_column;
}

// Starts the copies of a tile's input rows. Each row keeps its alignment to 16 bytes, so a copied row starts
// up to three words into its place.
__device__ inline void copy_tile(const FewChannelsArguments& problem, const Tile& tile, int first_channel,
                                 float* raw) {
  const InputWindow window(problem, tile);
  const int width = window.end_column - window.begin_column;
  if (width <= 0) return;  // the tile reads padding alone
  const int rows = problem.tile_images * problem.channels * problem.raw_rows;
  const int count = rows * problem.raw_chunks.divisor;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int row = problem.raw_chunks.quotient(i);
    const int chunk = i - row * problem.raw_chunks.divisor;
    const int plane = problem.raw_rows_divisor.quotient(row);
    const int image = problem.channels_divisor.quotient(plane);
    const int channel = first_channel + plane - image * problem.channels;
    const int row_of_plane = row - plane * problem.raw_rows;
    const int input_row = window.first_row + row_of_plane;
    if (input_row < 0 || input_row >= problem.input_height || tile.n + image >= problem.batch) continue;
    const long long start = input_offset(problem, tile, window, image, channel, row_of_plane);
    const int misaligned = static_cast<int>(start & 3);
    const int left = width + misaligned - chunk * 4;  // words of the row from this chunk on
    if (left <= 0) continue;
    const long long word = start - misaligned + chunk * 4;
    const float* source = problem.x + word;
    // What lies beyond the row is copied too, and not used; but nothing lies beyond the tensor.
    if (problem.copies_16_bytes && word + 4 <= problem.input_words) {
      copy_async<16>(raw + i * 4, source);
    } else {
      for (int j = chunk == 0 ? misaligned : 0; j < min(4, left); ++j)
        copy_async<4>(raw + i * 4 + j, source + j);
    }
  }
}

// Finds where each line of the paired input comes from.
__device__ inline void find_sources(const FewChannelsArguments& problem, const Tile& tile, int first_channel,
                                    LineSource* sources) {
  const InputWindow window(problem, tile);
  const int lines = problem.tile_images * problem.planes * problem.lines_per_plane.divisor;
  for (int line = threadIdx.x; line < lines; line += blockDim.x) {
    const int plane = problem.lines_per_plane.quotient(line);
    const int within = line - plane * problem.lines_per_plane.divisor;
    const int image = problem.planes_divisor.quotient(plane);
    const int row = problem.phases_divisor.quotient(within);
    const int phase = within - row * problem.phases;
    const int channel = (plane - image * problem.planes) * (problem.pairs_channels ? 2 : 1);
    const auto source_of = [&](int c, int r) {
      const int input_row = window.first_row + r;
      if (c >= problem.channels || input_row < 0 || input_row >= problem.input_height) return kNoSource;
      const int raw_row = (image * problem.channels + c) * problem.raw_rows + r;
      const long long start = input_offset(problem, tile, window, image, first_channel + c, r);
      return raw_row * static_cast<int>(problem.raw_chunks.divisor) * 4 + static_cast<int>(start & 3) + phase;
    };
    sources[line] = {source_of(channel, row), problem.pairs_channels
                                                  ? source_of(channel + 1, row)
                                                  : source_of(channel, row + problem.row_distance)};
    if (tile.n + image >= problem.batch) sources[line] = {kNoSource, kNoSource};
  }
}

// Rounds the input and lays it out in pairs, two columns to a thread. Columns of equal remainder by the
// stride lie together, so that neighbouring outputs read neighbouring words. Padding becomes zeros.
__device__ inline void pair_tile(const FewChannelsArguments& problem, const Tile& tile,
                                 const LineSource* sources, const float* raw, unsigned* paired) {
  const InputWindow window(problem, tile);
  const int lines = problem.tile_images * problem.planes * problem.lines_per_plane.divisor;
  const int count = lines * problem.column_pairs.divisor;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int line = problem.column_pairs.quotient(i);
    const int column = 2 * (i - line * problem.column_pairs.divisor);
    const int plane = problem.lines_per_plane.quotient(line);
    const int within = line - plane * problem.lines_per_plane.divisor;
    const LineSource source = sources[line];
    const int phase = within - problem.phases_divisor.quotient(within) * problem.phases;
    const int skipped = window.begin_column - window.first_column;
    unsigned words[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int raw_column =
          (column + j) * problem.stride_width;  // from the window's first, but for the phase
      const int input_column = window.first_column + raw_column + phase;
      const bool inside = input_column >= 0 && input_column < window.end_column;
      const int word = raw_column - skipped;
      words[2 * j] = inside && source.first != kNoSource ? round_to_tf32(raw[source.first + word]) : 0u;
      words[2 * j + 1] = inside && source.second != kNoSource ? round_to_tf32(raw[source.second + word]) : 0u;
    }
    *reinterpret_cast<uint4*>(paired + plane * problem.plane_words + within * problem.line_words +
                              column * 2) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// What the multiplication's depth holds at `index`. Where the pairs do not fill the last step, pairs from the
// front stand there again, and where a filter has an odd number of rows, the middle row stands in two pairs;
// their weights are shared out in halves or quarters, which is exact. Zero weights would not do: zero times
// an infinite pixel is not zero.
__device__ inline FilterPair filter_pair(const FewChannelsArguments& problem, int index) {
  const int fillers = problem.steps * kPairsPerStep - problem.pairs;
  const int pair = index < problem.pairs ? index : (index - problem.pairs) % problem.pairs;
  const float share = pair < fillers ? (problem.pairs == 1 ? 0.25f : 0.5f) : 1.0f;

  const bool single_taps = problem.dilation_width != 1;
  const int per_line = single_taps ? problem.filter_width : problem.phases;
  const int within = pair % per_line;
  const int line = pair / per_line;
  const int rows = problem.pairs_channels ? problem.filter_height : (problem.filter_height + 1) / 2;
  const int r = line % rows;
  const int plane = line / rows;

  const auto weight_at = [&](int c, int row) {
    return ((problem.first_channel + c) * problem.filter_height + row) * problem.filter_width + within;
  };
  FilterPair result;
  if (problem.pairs_channels) {
    result.first = weight_at(2 * plane, r);
    result.second = 2 * plane + 1 < problem.channels ? weight_at(2 * plane + 1, r) : -1;
    result.first_scale = share;
    result.second_scale = share;
  } else {
    const int distance = problem.filter_height / 2;
    const bool odd = problem.filter_height % 2 == 1;
    result.first = weight_at(plane, r);
    result.second = weight_at(plane, r + distance);
    result.first_scale = share * (odd && r == distance ? 0.5f : 1.0f);
    result.second_scale = share * (odd && r == 0 ? 0.5f : 1.0f);
  }
  int phase = within;
  int column = 0;
  result.taps = (problem.filter_width - within + problem.stride_width - 1) / problem.stride_width;
  if (single_taps) {
    phase = within * problem.dilation_width % problem.stride_width;
    column = within * problem.dilation_width / problem.stride_width;
    result.taps = 1;
  }
  result.offset = plane * problem.plane_words +
                  (r * problem.dilation_height * problem.phases + phase) * problem.line_words + 2 * column;
  return result;
}

// Rounds the weights and lays them out as the tensor core reads them: for each (filter block, step, tap, tile
// of 16 filters) the four values of every lane side by side.
template <int kTaps, int kTiles>
__device__ inline void stage_weights(const FewChannelsArguments& problem, const FilterPair* pairs, int group,
                                     int first_filter, unsigned* weights) {
  const int filter_words = problem.channels_per_group * problem.filter_height * problem.filter_width;
  const int count = problem.filter_blocks * problem.steps * kTaps * kTiles * 128;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int lane = i / 4 % 32;
    const int tile = i / 128 % kTiles;
    const int tap = i / (128 * kTiles) % kTaps;
    const int block_step = i / (128 * kTiles * kTaps);
    const int step = block_step % problem.steps;
    const int filter =
        first_filter + (block_step / problem.steps * kTiles + tile) * 16 + i % 2 * 8 + lane / 4;
    const FilterPair pair = pairs[step * kPairsPerStep + lane % 4];
    const int start = i % 4 < 2 ? pair.first : pair.second;
    float value = 0.0f;
    if (start >= 0 && tap < pair.taps && filter < problem.filters_per_group) {
      value = problem.w[(static_cast<long long>(group) * problem.filters_per_group + filter) * filter_words +
                        start + tap * problem.stride_width] *
              (i % 4 < 2 ? pair.first_scale : pair.second_scale);
    }
    weights[i] = round_to_tf32(value);
  }
}

// A quad of neighbouring output columns.
struct Quad {
  int word;     // of its first pixel in the paired input
  int offset;   // of its first column in the output, from the tile's first image and filter 0
  int columns;  // how many of the four are inside the output

  __device__ Quad(const FewChannelsArguments& problem, const Tile& tile, int index, int quads) {
    const unsigned clamped = min(index, quads - 1);
    const int image = problem.quads_per_image.quotient(clamped);
    const unsigned within = clamped - image * problem.quads_per_image.divisor;
    const int row = problem.quads_per_row.quotient(within);
    const int column = (within - row * problem.quads_per_row.divisor) * kQuad;
    const int q = tile.first_column + column;
    word = image * problem.planes * problem.plane_words +
           row * problem.stride_height * problem.phases * problem.line_words + 2 * column;
    offset =
        (image * problem.out_channels * problem.output_height + tile.first_row + row) * problem.output_width +
        q;
    columns = index < quads ? min(kQuad, problem.output_width - q) : 0;
  }
};

// The words of a pair of filter rows that a quad's pixels need between them.
template <int kTaps>
struct Window {
  static constexpr int kColumns = kTaps + kQuad - 1;
  static constexpr int kLoaded = (kColumns + 1) / 2 * 2;
  unsigned words[2 * kLoaded];

  __device__ void load(const unsigned* source) {
    if constexpr (kTaps == 1) {
      // A single tap of a dilated filter may start at an odd column, where 16 bytes are not aligned.
#pragma unroll
      for (int i = 0; i < 2 * kLoaded; i += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(source + i);
        words[i] = two.x, words[i + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kLoaded; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(source + i);
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
    }
  }
};

// Sums of 16 * kTiles filters at 64 pixels. Column g of the tensor core's result is quad g of eight with its
// two low bits exchanged: then the loads of a quarter-warp fall into different banks, and neighbouring lanes
// store neighbouring quads.
template <int kTaps, int kTiles, bool kRagged>
struct Unit {
  float sums[2][kQuad][kTiles][4];  // set of eight quads, pixel of the quad, tile, the tensor core's four

  static __device__ int quad_of_column(int column) {
    return (column & 4) | (column & 1) << 1 | (column & 2) >> 1;
  }

  __device__ void multiply(const FewChannelsArguments& problem, const unsigned* const (&pixels)[2],
                           const FilterPair* pairs, const uint4* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int set = 0; set < 2; ++set) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[set][i][tile][j] = 0.0f;
        }
      }
    }
    weights += lane;
#pragma unroll 1
    for (int step = 0; step < problem.steps; ++step) {
      const FilterPair& pair = pairs[step * kPairsPerStep + lane % 4];
      const int taps = kRagged ? pair.taps : kTaps;
      Window<kTaps> windows[2];
#pragma unroll
      for (int set = 0; set < 2; ++set) windows[set].load(pixels[set] + pair.offset);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap, weights += 32 * kTiles) {
        uint4 a[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) a[tile] = weights[32 * tile];
#pragma unroll
        for (int set = 0; set < 2; ++set) {
#pragma unroll
          for (int i = 0; i < kQuad; ++i) {
            // Beyond a shorter filter row lie pixels that the output must not see.
            const unsigned first = !kRagged || tap < taps ? windows[set].words[2 * (tap + i)] : 0u;
            const unsigned second = !kRagged || tap < taps ? windows[set].words[2 * (tap + i) + 1] : 0u;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              multiply_add_tf32(sums[set][i][tile], a[tile], first, second);
          }
        }
      }
    }
  }

  // Writes the sums, with their bias, of `filters` filters; `y` is the first of them in the tile's first
  // image.
  __device__ void store(const FewChannelsArguments& problem, const Quad (&quads)[2], float* y,
                        const float* bias, int filters, float* staged) const {
    const long long plane = static_cast<long long>(problem.output_height) * problem.output_width;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = tile * 16 + half * 8;
        if (first >= filters) return;
        const int own = first + threadIdx.x % 32 / 4;
        const float b = bias == nullptr || own >= filters ? 0.0f : bias[own];
        if (problem.stores_quads) {
          store_quads(problem, quads, y + own * plane, tile, half, b, own < filters);
        } else {
          store_staged(problem, quads, y + first * plane, plane, tile, half, b, min(8, filters - first),
                       staged);
        }
      }
    }
  }

 private:
  // A lane holds filter g of each half tile, at the quads of columns 2t and 2t + 1.
  __device__ float4 quad_values(int set, int tile, int half, int column, float b) const {
    const int j = half * 2 + column;
    return make_float4(sums[set][0][tile][j] + b, sums[set][1][tile][j] + b, sums[set][2][tile][j] + b,
                       sums[set][3][tile][j] + b);
  }

  // Straight from the registers, where rows are whole aligned quads.
  __device__ void store_quads(const FewChannelsArguments& problem, const Quad (&quads)[2], float* y, int tile,
                              int half, float b, bool valid) const {
#pragma unroll
    for (int set = 0; set < 2; ++set) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int owner = (threadIdx.x % 4 * 2 + column) * 4;
        const int offset = __shfl_sync(0xffffffff, quads[set].offset, owner);
        const int columns = __shfl_sync(0xffffffff, quads[set].columns, owner);
        if (valid && columns == kQuad) {
          float4 values = quad_values(set, tile, half, column, b);
          if (problem.accumulates) {
            const float4 sum = *reinterpret_cast<const float4*>(y + offset);
            values = make_float4(values.x + sum.x, values.y + sum.y, values.z + sum.z, values.w + sum.w);
          }
          *reinterpret_cast<float4*>(y + offset) = values;
        }
      }
    }
  }

  // Through shared memory, so that a warp stores 32 neighbouring pixels whatever their alignment: a row of
  // odd width would otherwise go out in single words, each a write of a part of a sector.
  __device__ void store_staged(const FewChannelsArguments& problem, const Quad (&quads)[2], float* y,
                               long long plane, int tile, int half, float b, int filters,
                               float* staged) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int set = 0; set < 2; ++set) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int quad = set * 8 + quad_of_column(lane % 4 * 2 + column);
        *reinterpret_cast<float4*>(staged + lane / 4 * kStagedPitch + quad * kQuad) =
            quad_values(set, tile, half, column, b);
      }
    }
    __syncwarp();
    float* target[2];
    bool inside[2];
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      const int owner = quad_of_column(lane / 4) * 4;
      target[set] = y + __shfl_sync(0xffffffff, quads[set].offset, owner) + lane % 4;
      inside[set] = lane % 4 < __shfl_sync(0xffffffff, quads[set].columns, owner);
    }
    if (problem.accumulates) {
      copy_staged<true>(target, inside, plane, filters, staged + lane);
    } else {
      copy_staged<false>(target, inside, plane, filters, staged + lane);
    }
  }

  template <bool kAccumulates>
  static __device__ void copy_staged(float* (&target)[2], const bool (&inside)[2], long long plane,
                                     int filters, const float* staged) {
    for (int filter = 0; filter < filters; ++filter) {
#pragma unroll
      for (int set = 0; set < 2; ++set) {
        const float value = staged[filter * kStagedPitch + set * 32];
        if (inside[set]) *target[set] = kAccumulates ? *target[set] + value : value;
        target[set] += plane;
      }
    }
  }
};

}  // namespace few_channels

// Persistent blocks: grid.x shares the tiles, grid.y the groups and, where the weights of a group do not fit,
// parts of its filters. Shared memory: filter pairs, weights, paired input, raw input of the next tile,
// staged results, line sources.
template <int kTaps, int kTiles, bool kRagged>
__global__ void __launch_bounds__(kFewChannelsMostThreads, 1)
    few_channels_kernel(const FewChannelsArguments problem) {
#if __CUDA_ARCH__ >= 800
  using namespace few_channels;
  using WarpUnit = Unit<kTaps, kTiles, kRagged>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int pair_slots = problem.steps * kPairsPerStep;
  const int block_words = problem.steps * kTaps * kTiles * 128;
  const int paired_words = problem.tile_images * problem.planes * problem.plane_words;
  FilterPair* pairs = reinterpret_cast<FilterPair*>(shared);
  unsigned* weights = reinterpret_cast<unsigned*>(pairs + pair_slots);
  unsigned* paired = weights + problem.filter_blocks * block_words;
  float* raw = reinterpret_cast<float*>(paired + paired_words);
  float* staged = raw + problem.raw_words;
  LineSource* sources = reinterpret_cast<LineSource*>(staged + blockDim.x / 32 * kStagedWords);

  const int group = blockIdx.y / problem.filter_splits;
  const int first_filter = blockIdx.y % problem.filter_splits * problem.filter_blocks * kTiles * 16;
  const int first_channel = group * problem.channels_per_group + problem.first_channel;
  const int tiles = problem.image_tiles * problem.bands * problem.column_tiles;
  const int warps = blockDim.x / 32;
  const int lane = threadIdx.x % 32;

  copy_tile(problem, Tile(problem, blockIdx.x), first_channel, raw);
  commit_copies();
  for (int i = threadIdx.x; i < pair_slots; i += blockDim.x) pairs[i] = filter_pair(problem, i);
  __syncthreads();
  stage_weights<kTaps, kTiles>(problem, pairs, group, first_filter, weights);

  for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Tile tile(problem, index);
    find_sources(problem, tile, first_channel, sources);
    wait_for_copies<0>();
    __syncthreads();
    pair_tile(problem, tile, sources, raw, paired);
    __syncthreads();
    if (index + static_cast<int>(gridDim.x) < tiles) {
      copy_tile(problem, Tile(problem, index + gridDim.x), first_channel, raw);
    }
    commit_copies();

    const int rows = min(problem.tile_rows, problem.output_height - tile.first_row);
    const int images = min(problem.tile_images, problem.batch - tile.n);
    const int quads = ((images - 1) * problem.tile_rows + rows) * problem.tile_quads;
    const int items = (quads + kQuadsPerUnit - 1) / kQuadsPerUnit * problem.filter_blocks;
    for (int item = threadIdx.x / 32; item < items; item += warps) {
      const int unit_index = problem.filter_block_divisor.quotient(item);
      const int filter_block = item - unit_index * problem.filter_blocks;
      const int first_quad = unit_index * kQuadsPerUnit + WarpUnit::quad_of_column(lane / 4);
      const Quad set[2] = {{problem, tile, first_quad, quads}, {problem, tile, first_quad + 8, quads}};
      const unsigned* const pixels[2] = {paired + set[0].word, paired + set[1].word};
      WarpUnit unit;
      unit.multiply(problem, pixels, pairs,
                    reinterpret_cast<const uint4*>(weights + filter_block * block_words));
      const int block_filter = first_filter + filter_block * kTiles * 16;
      const int k = group * problem.filters_per_group + block_filter;
      float* y = problem.y + (static_cast<long long>(tile.n) * problem.out_channels + k) *
                                 problem.output_height * problem.output_width;
      unit.store(problem, set, y, problem.b == nullptr ? nullptr : problem.b + k,
                 problem.filters_per_group - block_filter, staged + threadIdx.x / 32 * kStagedWords);
    }
  }
#endif
}

}  // namespace convswap
