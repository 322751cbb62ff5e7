// Written by `python benchmarks/fit.py fit`. Names and units: coefficients.def.
// clang-format off

#include "cuda/costs/cost_table.h"

namespace convswap {

extern const FittedCosts kH200{
    .card = "NVIDIA H200",
    .date = "2026-11-29",
    .commit = "fbf90e18",
    .driver = "580.159.04",
    .compute_capability = 90,
    .memory_bandwidth = 4.814e+12,
    .clock = 1.98e+09,
    .costs = {
        .activation = {
            .silu = 17,
            .hard_swish = 13,
            .call = 115,
        },
        .depthwise = {
            .launch = 1300,  // ns
        },
        .epilogue = {
            .launch = 850,  // ns
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
            .launch = 1500,  // ns
        },
        .many_channels = {
            .launch = 2000,  // ns
        },
        .pointwise = {
            .launch = 1600,  // ns
        },
        .row_windows = {
            .launch = 1300,  // ns
        },
        .separable = {
            .launch = 1870,  // ns
        },
        .sliced_k = {
            .launch = 680,  // ns
        },
        .sliding_rows = {
            .launch = 923,  // ns
            .memory = 3942,  // GB/s
            .instruction = 0.6324,  // ns
            .begin = 121,
            .row = 27.44,
            .output = 3.798,
            .overlap = 0.4161,
            .row_latency = 61.89,  // ns
            .latency_per_product = 0.7758,  // ns
        },
        .tiled = {
            .launch = 1610,  // ns
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
