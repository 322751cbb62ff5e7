#include "cuda/costs/cost_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "plan/tuning.h"

namespace convswap {
namespace {

constexpr std::string_view kRateUnit = "GB/s";

// Multiplications and additions of a multiprocessor's tensor cores in a clock cycle, for float16 products
// with float32 sums: NVIDIA's descriptions of the architectures. Hopper's figure is for mma.sync, which
// reaches 62 % of wgmma's rate there; only Hopper runs wgmma.
double tensor_operations_per_clock(int compute_capability) {
  struct Architecture {
    int compute_capability;
    double operations;
  };
  constexpr Architecture kArchitectures[] = {{75, 512},  {80, 1024},  {86, 256}, {89, 256},
                                             {90, 1270}, {100, 1024}, {120, 256}};
  double operations = 0;
  for (const Architecture& each : kArchitectures) {
    if (operations == 0 || each.compute_capability <= compute_capability) operations = each.operations;
  }
  return operations;
}

// The factors for the times of a device that has no table, from the table of another card.
std::vector<std::pair<std::string, double>> factors_between(const FittedCosts& table, const Device& device) {
  std::vector<std::pair<std::string, double>> factors;
  if (device.memory_bandwidth > 0) {
    factors.emplace_back("memory", table.memory_bandwidth / device.memory_bandwidth);
  }
  if (device.clock > 0) {
    factors.emplace_back("clock", table.clock / device.clock);
    factors.emplace_back("tensor",
                         table.clock * tensor_operations_per_clock(table.compute_capability) /
                             (device.clock * tensor_operations_per_clock(device.compute_capability)));
  }
  return factors;
}

std::string fitted_to(const FittedCosts& table) {
  return "fitted to an " + std::string(table.card) + " on " + std::string(table.date);
}

}  // namespace

std::string_view name_of(CostScale scale) {
  switch (scale) {
    case CostScale::fixed:
      return "fixed";
    case CostScale::launch:
      return "launch";
    case CostScale::memory:
      return "memory";
    case CostScale::tensor:
      return "tensor";
    case CostScale::clock:
      return "clock";
  }
  return "";
}

std::span<const Coefficient> coefficients() {
  static const std::vector<Coefficient> all = [] {
    std::vector<Coefficient> found;
#define FAMILY(family) \
  {                    \
    constexpr std::string_view kFamily = #family;
#define COEFFICIENT(name, unit, scale) found.push_back({kFamily, #name, unit, CostScale::scale});
#define END_FAMILY(family) }
#include "cuda/costs/coefficients.def"
#undef FAMILY
#undef COEFFICIENT
#undef END_FAMILY
    return found;
  }();
  return all;
}

Costs with_factors(const Costs& costs, std::span<const std::pair<std::string, double>> factors) {
  CostValues values = values_of(costs);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Coefficient& coefficient = coefficients()[i];
    if (coefficient.unit.empty()) continue;
    for (const auto& [name, factor] : factors) {
      if (name != coefficient.family && name != name_of(coefficient.scale)) continue;
      values[i] = coefficient.unit == kRateUnit ? values[i] / factor : values[i] * factor;
    }
  }
  return costs_from(values);
}

const FittedCosts& nearest_costs(const Device& device) {
  const auto distance = [&](const FittedCosts* table) {
    return device.name == table->card ? -1 : std::abs(table->compute_capability - device.compute_capability);
  };
  return **std::ranges::min_element(fitted_costs(), {}, distance);
}

std::shared_ptr<const CostTable> cost_table_of(const Device& device) {
  const FittedCosts& nearest = nearest_costs(device);
  const auto scaled = [&](const auto& factors, std::string origin) {
    return std::make_shared<const CostTable>(
        CostTable{with_factors(nearest.costs, factors), std::move(origin)});
  };
  if (const std::optional<TuningEntry> calibrated = find_calibration(device)) {
    return scaled(calibrated->milliseconds, "calibrated on this card; " + fitted_to(nearest));
  }
  if (device.name == nearest.card)
    return std::make_shared<const CostTable>(CostTable{nearest.costs, fitted_to(nearest)});
  return scaled(factors_between(nearest, device),
                fitted_to(nearest) + ", scaled by the clocks and bandwidths of both cards");
}

}  // namespace convswap
