#pragma once

#include "plan/device.h"

namespace convswap::lab {

// Leaves NaN in all shared memory of the card, in the stream's turn. Throws where the card refuses.
void fill_shared_memory(const Device& device, void* stream);

}  // namespace convswap::lab
