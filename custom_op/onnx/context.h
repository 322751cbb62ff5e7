#pragma once

// What kernels of every op ask a session and a run for.

#include <optional>
#include <string>
#include <vector>

#include "onnx/api.h"
#include "plan/algorithm.h"

namespace convswap {

// The name of a node; "" if it has none.
std::string node_name(const OrtApi& api, const OrtKernelInfo* info);

// The session's card: the only card, or the one that holds `constant`. Empty if neither is known. `constant`
// is a constant input of a node, or null.
std::optional<int> device_of_session(const OrtApi& api, const OrtValue* constant);

// The batches to plan ahead for an input x: the declared batch, or common batches if it is unknown. None if
// another dimension is unknown.
std::vector<int64_t> batches_to_plan(const Shape& x);

// The index of the card that holds a tensor; 0 on the CPU.
int device_index(const OrtApi& api, const OrtValue* tensor, DeviceKind kind);

// The resources of a run: ONNX Runtime's thread pool on the CPU, the run's stream on a card.
Execution execution_of(const OrtApi& api, OrtKernelContext* context, DeviceKind kind);

// Returns a tensor's address on a card, where no copy is made. Throws if a user bound misaligned memory.
void* aligned_data(const OrtApi& api, const OrtValue* tensor, int64_t element_bytes);

// Writes a warning to ONNX Runtime's log about something that costs time but does not change results, such as
// a damaged tuning table. An empty text writes nothing.
void log_warning(const OrtApi& api, const OrtKernelContext* context, const std::string& text);

// Logs once per process that a run has to wait for the compiler of an offer's kernels.
void log_compiling(const OrtApi& api, const OrtKernelContext* context, const Device& device,
                   const Offer& offer);

}  // namespace convswap
