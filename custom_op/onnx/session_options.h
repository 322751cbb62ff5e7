#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "cuda/runtime/kernel_origin.h"
#include "onnx/api.h"

// Session config entries. A program sets them in the session options before it registers the library.
//
// Origin of a card's kernels:
//
//   convswap.pack = FILE        a pack of kernels
//   convswap.compile = never    compiles nothing; auto or absent: compiles kernels that no pack has
//
// and the entries of session_files() in plan/catalog.h, each the file that one algorithm needs.
//
// The override mode replaces ONNX Runtime's own Conv by our op, for unmodified models:
//
//   convswap.override = 1      the override mode; 0 or absent: only the op convswap.Conv
//   convswap.precision = ieee  precision of Conv nodes in the override mode, which have no such attribute;
//                              tf32 or absent: ONNX Runtime's default on CUDA
//   convswap.kernels = record  starts to record the node name of each kernel that this thread creates
//   convswap.kernels = read    stops recording; sets convswap.kernels.count, and the node names as
//                              convswap.kernels.0, .1, ..., each cut to 1000 bytes
//
// A session creates its kernels in the thread that creates the session. A program that records, creates a
// session and reads thus learns which Conv nodes run on our op; ONNX Runtime does not tell.

namespace convswap {

// True if the session options have this config entry.
bool has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// Returns a config entry's value; empty if there is none.
std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// The names of the entries for the kernels' origin as text: "convswap.pack or convswap.compile".
std::string kernel_origin_entries();

// Reads the kernels' origin from `options`; null without such entries. Throws for an unknown value or an
// invalid file.
const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options);

// True if `options` ask for the override mode. Throws OnnxRuntimeError if the value is neither 0 nor 1.
bool override_requested(const OrtApi& api, const OrtSessionOptions* options);

// The precision of the override mode. Throws OnnxRuntimeError if the value is no precision.
Precision override_precision(const OrtApi& api, const OrtSessionOptions* options);

// Disables optimisers for sessions of `options`, in addition to those that the user disabled. ONNX Runtime
// ignores unknown names. Throws.
void disable_optimizers(const OrtApi& api, OrtSessionOptions* options,
                        std::initializer_list<const char*> names);

// This optimiser adds nodes beside a Conv of any domain, in the domain of the Conv. In our domain they have
// no kernels, and a quantised model with a float32 bias would not load.
inline constexpr char kWeightBiasQuantization[] = "WeightBiasQuantization";

// Disables the optimisers that replace Conv nodes before kernels are looked up. Throws for ONNX Runtime below
// 1.18, which has no such setting.
void keep_conv_nodes(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options);

// If the entry convswap.kernels of `options` is "record", starts to record nodes; if "read", ends recording
// and adds the recorded names to `options`. Throws for another value.
void handle_kernel_recording(const OrtApi& api, OrtSessionOptions* options);

// Records that this thread created a kernel for the node of this name.
void record_kernel(const std::string& node);

}  // namespace convswap
