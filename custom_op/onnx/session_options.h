#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "cuda/runtime/kernel_origin.h"
#include "onnx/api.h"

// What a program says in a session's options, as config entries that it sets before it registers the library,
// and what the library says there in turn.
//
// Where the kernels of a card come from:
//
//   convswap.pack = FILE        a pack of kernels
//   convswap.compile = never    nothing is compiled; auto or absent: what no pack has
//
// and the entries of plan/catalog.h's session_files, each a file that one algorithm computes with.
//
// The override mode: our op in the place of ONNX Runtime's own Conv, for unmodified models.
//
//   convswap.override = 1      the override mode; 0 or absent: only the op convswap.Conv
//   convswap.precision = ieee  of Conv nodes in the override mode, which have no such attribute; tf32 or
//                              absent: ONNX Runtime's own default on CUDA
//   convswap.kernels = record  begins to note the node of each kernel that is made by this thread
//   convswap.kernels = read    ends that, and sets convswap.kernels.count and, to the names of the nodes, cut
//                              to 1000 bytes, convswap.kernels.0, .1, ...
//
// A session makes its kernels in the thread that creates it. So a program that records, creates a session and
// reads learns which Conv nodes really are ours, which ONNX Runtime does not tell.

namespace convswap {

// Whether the session options have a config entry of that key.
bool has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// Its value; nothing where there is none.
std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// The entries of where kernels come from, in words: "convswap.pack or convswap.compile".
std::string kernel_origin_entries();

// What `options` say of where kernels come from. Null where they say nothing. Throws where an entry has
// another value, or a file is not what it should be.
const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options);

// Whether `options` ask for the override mode. Throws OnnxRuntimeError where the value is neither 0 nor 1.
bool override_requested(const OrtApi& api, const OrtSessionOptions* options);

// The precision that `options` ask for in the override mode. Throws OnnxRuntimeError where the value is no
// precision.
Precision override_precision(const OrtApi& api, const OrtSessionOptions* options);

// Adds optimisers to those that sessions of `options` do without, beside what the user disabled. ONNX Runtime
// does not look at names that it has no optimiser of. Throws.
void disable_optimizers(const OrtApi& api, OrtSessionOptions* options,
                        std::initializer_list<const char*> names);

// Beside a node called Conv, of any domain, this optimiser puts others into that same domain, where those
// have no kernels: a quantised model whose bias is float32 would not load.
inline constexpr char kTakesOurDomain[] = "WeightBiasQuantization";

// Has sessions of `options` do without the optimisers that take Conv nodes before a kernel is looked for.
// Throws where this ONNX Runtime, below 1.18, knows no such setting.
void keep_conv_nodes(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options);

// Does what the entry convswap.kernels of `options` asks for. Throws.
void answer_kernels(const OrtApi& api, OrtSessionOptions* options);

// Notes that this thread made a kernel for the node of this name.
void note_kernel(const std::string& node);

}  // namespace convswap
