// Written by `python benchmarks/fit.py fit`. Names and units: coefficients.def.
// clang-format off

#include "cuda/costs/cost_table.h"

namespace convswap {

extern const FittedCosts kH200{
    .card = "NVIDIA H200",
    .date = "2026-11-30",
    .commit = "dea51266",
    .driver = "580.159.04",
    .compute_capability = 90,
    .memory_bandwidth = 4.814e+12,
    .clock = 1.98e+09,
    .costs = {
        .activation = {
            .silu = 16,
            .hard_swish = 8,
            .gelu = 24,
            .call = 115,
            .cycle = 0.505,  // ns
        },
        .channels_last = {
            .launch = 2562,  // ns
            .memory = 4012,  // GB/s
            .cache = 1.173e+04,  // GB/s
            .exposed = 0.7079,
            .column = 1.172,  // ns
            .unit = 9.411,  // ns
            .split = 400,  // ns
            .chunk = 11.86,  // ns
            .block = 8.854,  // ns
            .exchange = 1342,  // ns
            .tile = 383.3,  // ns
            .result = 2.794,  // ns
            .activation = 0.1049,  // ns
            .activation_overhead = 19.8,
            .instruction = 0.42,  // ns
            .begin = 98.93,  // ns
        },
        .channels_last_depthwise = {
            .launch = 1330,  // ns
            .memory = 3404,  // GB/s
            .cache = 4068,  // GB/s
            .line = 0.02165,  // ns
            .instruction = 0.9895,  // ns
            .latency = 1.527,  // ns
            .row = 498.9,  // ns
            .thread = 197.7,
            .strip = 2.023,
            .vector = 8.551,
            .conversion = 0.3238,
            .output = 1.287,
            .activation = 0.2534,
        },
        .channels_last_mma = {
            .launch = 1893,  // ns
            .memory = 4111,  // GB/s
            .cache = 7000,  // GB/s
            .load = 300.5,  // ns
            .mma = 0.842,  // ns
            .shared = 4.752,  // ns
            .chunk = 65,  // ns
            .tile = 472.8,  // ns
            .store = 3.901,  // ns
            .instruction = 0.285,  // ns
            .activation = 0.1113,  // ns
        },
        .depthwise = {
            .launch = 1342,  // ns
            .memory = 3994,  // GB/s
            .instruction = 0.1178,  // ns
            .latency = 0.5999,  // ns
            .residual = 168.9,  // ns
            .plane_offsets = 407.7,  // ns
            .block = 36.74,  // ns
            .load = 69.91,
            .element = 152.6,
            .strip = 362.5,
            .output = 84.96,
            .activation = 2.736,
            .shared = 6.524,
            .filter_row = 162.4,
            .tail = 0.3866,
        },
        .epilogue = {
            .launch = 2000,  // ns
            .memory = 3370,  // GB/s
            .pool = 1580,  // ns
            .window = 0.343,  // ns
            .input = 0.104,  // ns
        },
        .few_channels = {
            .launch = 2272,  // ns
            .memory = 3450,  // GB/s
            .cache = 1.513e+04,  // GB/s
            .turns = 2213,
            .weights = 429.5,  // ns
            .line = 7.071,  // ns
            .tile = 1709,  // ns
            .copy = 5.048,  // ns/KB
            .run = 14.9,  // ns
            .run_latency = 149.3,  // ns
            .staging = 310.7,  // ns
            .conversion = 0.3004,
            .step = 53.79,  // ns
            .addition = 196.8,  // ns
            .load = 8.199,  // ns
            .store = 89.8,  // ns
            .cycle = 0.3895,  // ns
        },
        .implicit_gemm = {
            .launch = 1545,  // ns
            .memory = 4535,  // GB/s
            .load = 3031,  // GB/s
            .store = 1.558e+04,  // GB/s
            .block = 4087,  // ns
            .step_weights = 225.5,  // ns
            .filter = 42.13,  // ns
            .step = 21.47,  // ns
            .output_tile = 387.3,  // ns
            .bank_cycle = 46.06,  // ns
            .chunk = 306.7,  // ns
            .pixels = 75.99,  // ns
            .channel = 5.439,  // ns
            .exposed = 0.06,
        },
        .layout = {
            .launch = 3509,  // ns
            .memory = 1496,  // GB/s
        },
        .many_channels = {
            .launch = 4256,  // ns
            .scaled = 1236,  // ns
            .full = 1759,  // ns
            .memory = 3806,  // GB/s
            .unaligned = 2.331,
            .vector = 283.5,  // ns
            .wgmma = 4.524,  // ns
            .mma = 7.8,  // ns
            .load = 1.095e+04,  // GB/s
            .k_tile = 84.78,  // ns
            .exposed = 0.3373,
            .work_tile = 791.3,  // ns
            .store = 389,  // ns
            .residual = 84.67,  // ns
            .activation = 0.892,  // ns
            .split = 1504,  // ns
            .sum = 1.619,  // ns
        },
        .pointwise = {
            .launch = 883.6,  // ns
            .late = 1069,  // ns
            .memory = 4674,  // GB/s
            .l2 = 8138,  // GB/s
            .weights = 3437,  // GB/s
            .partial_sector = 1.795,
            .product = 2.845,  // ns
            .load = 8.821,  // ns
            .store = 16.69,  // ns
            .spill = 1.263,
            .tile = 875.8,  // ns
            .staged_chunk = 373.2,  // ns
            .residual = 2120,  // ns
        },
        .quantised = {
            .launch = 1460,  // ns
            .memory = 2490,  // GB/s
            .product = 250,  // ps
            .latency = 10,  // ns
            .multiply = 0.18,  // ns
            .step = 1.89,  // ns
            .load = 4,  // ns
            .staged = 43.7,  // ns
            .result = 3.47,  // ns
            .begin = 692,  // ns
        },
        .row_windows = {
            .launch = 1383,  // ns
            .memory = 4905,  // GB/s
            .begin = 1925,  // ns
            .weights = 107.3,  // ns
            .segment = 9.874,  // ns
            .load = 1.441,  // ns
            .chunk = 369.7,  // ns
            .step = 22.33,  // ns
            .store = 1.48,  // ns
            .activation = 0.2912,  // ns
            .request = 0.02537,  // ns
        },
        .separable = {
            .launch = 1621,  // ns
            .memory = 3539,  // GB/s
            .step = 204.7,  // ns
            .row_latency = 76.71,  // ns
            .row = 112.4,  // ns
            .results = 126.5,  // ns
            .activation = 0.768,  // ns
        },
        .sliced_k = {
            .launch = 175.7,  // ns
            .late = 553.5,  // ns
            .memory = 4516,  // GB/s
            .l2 = 1.561e+04,  // GB/s
            .step = 16.35,  // ns
            .load = 2.092,  // ns
            .product = 0.8911,  // ns
            .split_product = 10.29,  // ns
            .begin = 1367,  // ns
            .latency = 469.9,  // ns
            .result = 114.7,  // ns
            .residual = 244.2,  // ns
        },
        .sliding_rows = {
            .launch = 721.7,  // ns
            .memory = 4918,  // GB/s
            .cache = 7976,  // GB/s
            .instruction = 0.2521,  // ns
            .latency = 1.099,  // ns
            .memory_latency = 80.73,  // ns
            .residual = 168.3,  // ns
            .begin = 260,
            .row = 37.17,
            .transfer = 5.696,
            .output = 10.31,
            .tail = 0.6142,
        },
        .tiled = {
            .launch = 1038,  // ns
            .block_start = 0.7866,  // ns
            .instruction = 0.1181,  // ns
            .instruction_latency = 1.929,  // ns
            .stage_latency = 1560,  // ns
            .row = 16.46,
            .staged = 108.4,
            .converted = 1.345,
            .result = 98.7,
            .split = 24.49,
            .residual = 72.06,
            .call = 81.64,
            .skipped = 19.88,
        },
        .toeplitz = {
            .launch = 1107,  // ns
            .memory = 3825,  // GB/s
            .copies = 1.076,
            .setup = 1316,  // ns
            .matrix = 348.8,  // ns
            .weights = 119.9,  // ns/KB
            .round = 555.6,  // ns
            .prefetch = 67.08,  // ns
            .staging = 14.9,  // ns/KB
            .product = 4.922,  // ns/KB
            .m_tile = 251.2,  // ns
            .checked = 21.31,  // ns
            .pass = 786,  // ns
            .post_pass = 417.7,  // ns
            .activation = 0.3653,  // ns
            .store = 12.65,  // ns
            .crowding = 72.61,  // ns
        },
    }};

}  // namespace convswap
