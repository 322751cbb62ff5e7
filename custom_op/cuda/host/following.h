#pragma once

#include "cuda/following.h"

namespace convswap {

Following following_of(const Epilogue& epilogue);

// Whether its activation does nothing but limit.
inline bool only_limits(const Epilogue& epilogue) { return following_of(epilogue).only_limits; }

}  // namespace convswap
