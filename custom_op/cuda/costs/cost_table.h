#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "plan/device.h"

// The tables of coefficients behind the planner's estimates. A family's cost.cc computes a time from a
// problem, a tiling and the coefficients of its family.

namespace convswap {

// The property of a card that a coefficient follows. From the card of a table to another, a time is divided
// by the ratio of the property, and a rate is multiplied by it.
enum class CostScale {
  fixed,   // the same on every card
  launch,  // the cost of launching a kernel
  memory,  // the bandwidth of memory
  tensor,  // the rate of a multiprocessor's tensor cores
  clock,   // the clock of the multiprocessors
};

std::string_view name_of(CostScale scale);

// The values of all coefficients: costs.sliding_rows.launch.
struct Costs {
#define FAMILY(family) struct {
#define COEFFICIENT(name, unit, scale) double name;
#define END_FAMILY(family) \
  }                        \
  family;
#include "cuda/costs/coefficients.def"
#undef FAMILY
#undef COEFFICIENT
#undef END_FAMILY
};

struct Coefficient {
  std::string_view family, name, unit;
  CostScale scale;
};

// Descriptions of the coefficients, in the order of the members of Costs.
std::span<const Coefficient> coefficients();

inline constexpr std::size_t kCoefficientCount = sizeof(Costs) / sizeof(double);

// The values of Costs in the order of coefficients(), and back.
using CostValues = std::array<double, kCoefficientCount>;
inline CostValues values_of(const Costs& costs) { return std::bit_cast<CostValues>(costs); }
inline Costs costs_from(const CostValues& values) { return std::bit_cast<Costs>(values); }

// A table that was fitted to measurements on a card, with the card's properties.
struct FittedCosts {
  std::string_view card;  // the driver's name of the card
  std::string_view date, commit, driver;
  int compute_capability;
  double memory_bandwidth;  // bytes per second, as the driver reports it
  double clock;             // Hz
  Costs costs;
};

// The tables that come with the library.
std::span<const FittedCosts* const> fitted_costs();

// The coefficients of a device and their origin in words.
struct CostTable {
  Costs costs{};
  std::string origin;
};

// The device's table if it has one, else that of the card with the nearest compute capability.
const FittedCosts& nearest_costs(const Device& device);

// nearest_costs() with factors: those that `convswap calibrate` measured on the device (plan/tuning.h).
// Without them, the costs of another card are scaled by clocks and bandwidths.
std::shared_ptr<const CostTable> cost_table_of(const Device& device);

// The coefficients of the device, or those of the first table if the device has none.
const Costs& costs_of(const Device& device);

// `costs` with the times of a family, or of the coefficients with a scale, multiplied by factors:
// {"memory", 1.2} makes everything that waits for memory 1.2 times as long, {"tiled", 0.9} shortens every
// estimate of tiled. Other names are ignored.
Costs with_factors(const Costs& costs, std::span<const std::pair<std::string, double>> factors);

}  // namespace convswap
