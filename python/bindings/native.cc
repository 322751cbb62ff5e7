// The Python module convswap._native: the catalog, the planner and direct calls, for tools and tests.
// python/convswap/_native.pyi documents each function.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "conv/error.h"
#include "cpu/direct.h"
#include "cuda/costs/cost_table.h"
#include "plan/catalog.h"
#include "plan/explanation.h"
#include "plan/first_error.h"
#include "plan/planner.h"
#include "plan/tuning.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

ConvProblem problem_of(const Shape& x_shape, const Shape& w_shape, bool has_bias,
                       const std::optional<Shape>& residual_shape,
                       const std::optional<Shape>& depthwise_shape, bool has_depthwise_bias,
                       const ConvSpec& spec) {
  if (w_shape.empty()) throw InvalidArgument("weights of shape []: expected 3, 4 or 5 dimensions");
  InputShapes shapes{x_shape, w_shape, {}, residual_shape, depthwise_shape, {}, {}, {}};
  if (has_bias) shapes.bias = Shape{w_shape[0]};
  if (has_depthwise_bias) {
    shapes.depthwise_bias =
        Shape{depthwise_shape && !depthwise_shape->empty() ? depthwise_shape->front() : 0};
  }
  return make_problem(spec, shapes);
}

// Returns the device to plan for: the CPU, a card of this machine or, with `compute_capability`, a typical
// card, which may be absent.
Device planned_device(const std::string& device, int index, int compute_capability) {
  if (parse_device(device) == DeviceKind::cpu) return cpu_device();
  if (compute_capability == 0) return cuda_device(index);
  return typical_cuda_device(compute_capability);
}

std::string why_not(const ConvProblem& problem, const std::string& algorithm, const std::string& device,
                    int index, int compute_capability, bool lends_scratch) {
  Device target = planned_device(device, index, compute_capability);
  target.lends_scratch = lends_scratch;
  check_algorithm_name(algorithm, target.kind);
  if (leaves_choice(algorithm)) return why_no_algorithm(problem, target);
  return offer_of(*find_algorithm(algorithm, target.kind), problem, target).why_not;
}

std::string choose(const ConvProblem& problem, const std::string& device, const std::string& algorithm,
                   int index, int compute_capability, bool lends_scratch, const std::string& tuned) {
  Device target = planned_device(device, index, compute_capability);
  target.lends_scratch = lends_scratch;
  return std::string(convswap::choose(problem, target, algorithm, TuningHints(tuned)).algorithm.name());
}

std::map<std::string, std::optional<double>> estimates(const ConvProblem& problem, const std::string& device,
                                                       int index, int compute_capability) {
  const Device target = planned_device(device, index, compute_capability);
  std::map<std::string, std::optional<double>> estimates;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != target.kind || algorithm->by_name_alone()) continue;
    const Offer offer = offer_of(*algorithm, problem, target);
    if (!offer.is_refusal()) estimates.emplace(algorithm->name(), offer.milliseconds);
  }
  return estimates;
}

// Returns the kernels of the selected algorithm. For an absent card, whose name is unknown, also the kernels
// of all algorithms that the node's hints name for any card.
std::vector<std::string> kernels_of(const ConvProblem& problem, const std::string& device,
                                    const std::string& algorithm, int index, int compute_capability,
                                    const std::string& tuned) {
  const Device target = planned_device(device, index, compute_capability);
  const TuningHints hints(tuned);
  std::vector<Offer> offers;
  offers.push_back(convswap::choose(problem, target, algorithm, hints).offer);
  if (!target.is_present && leaves_choice(algorithm)) {
    for (const std::string& name : hints.algorithms_on_any_device(problem, target.kind)) {
      const Algorithm* const named = find_algorithm(name, target.kind);
      if (named != nullptr && !named->by_name_alone()) offers.push_back(offer_of(*named, problem, target));
    }
  }
  std::vector<std::string> names;
  for (const Offer& offer : offers) {
    if (offer.is_refusal() || offer.kernels == nullptr) continue;
    for (std::string& name : offer.kernels()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
  }
  return names;
}

std::string compilation_notice(const ConvProblem& problem, const std::string& device,
                               const std::string& algorithm, int index) {
  const Device target = planned_device(device, index, 0);
  return convswap::compilation_notice(target, convswap::choose(problem, target, algorithm).offer);
}

py::list facts_of(const Plan& plan) {
  py::list kernels;
  for (const KernelFacts& kernel : plan.kernels()) kernels.append(dict_of(kernel));
  return kernels;
}

py::dict explain_problem(const ConvProblem& problem, const std::string& device, const std::string& algorithm,
                         int index, int compute_capability, const std::string& tuned) {
  const Device target = planned_device(device, index, compute_capability);
  const Explanation explanation = explain(problem, target, algorithm, TuningHints(tuned));
  py::list others;
  for (const OtherAlgorithm& other : explanation.others) {
    py::dict facts;
    facts["algorithm"] = other.name;
    facts["supports"] = other.supports;
    facts["why_not"] = other.why_not;
    facts["milliseconds"] = other.milliseconds;
    others.append(facts);
  }
  // The launch shape depends on attributes of the compiled kernel, which only the card's driver knows.
  const bool is_present = target.kind == DeviceKind::cpu || compute_capability == 0;
  const std::unique_ptr<Plan> plan = is_present ? explanation.make() : nullptr;
  py::dict result;
  result["device"] = target.kind == DeviceKind::cpu ? tuning_device(target) : target.name;
  result["algorithm"] = std::string(explanation.algorithm.name());
  result["decided_by"] = explanation.decided_by;
  result["why"] = explanation.why;
  result["milliseconds"] = explanation.milliseconds;
  result["plan"] = plan ? py::cast(plan->describe()) : py::none();
  result["kernels"] = plan ? py::object(facts_of(*plan)) : py::none();
  result["bytes"] = problem.bytes();
  result["operations"] = problem.operations();
  result["others"] = others;
  return result;
}

Shape shape_of(const py::array& array) { return Shape(array.shape(), array.shape() + array.ndim()); }

// Arrays are not converted: a conversion would silently compute float64 data in float32.
ElementType type_of(const char* name, const py::array& array) {
  if ((array.flags() & py::array::c_style) == 0) {
    throw InvalidArgument(std::string(name) + " is not C-contiguous; pass numpy.ascontiguousarray(" + name +
                          ")");
  }
  return parse_element_type(std::string(py::str(array.dtype())));
}

// Returns a ParallelFor that starts and joins `threads` threads in every call (0: as many as the processor
// has).
ParallelFor parallel_for_with(int threads) {
  return [threads](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    const unsigned wanted =
        threads > 0 ? static_cast<unsigned>(threads) : std::max(1u, std::thread::hardware_concurrency());
    FirstError error;
    std::atomic<std::ptrdiff_t> next{0};
    const auto work = [&] {
      for (std::ptrdiff_t task = next++; task < tasks; task = next++) {
        error.guard([&] { body(task); });
      }
    };
    std::vector<std::jthread> workers;
    const auto helpers = std::min<std::ptrdiff_t>(wanted, tasks) - 1;
    for (std::ptrdiff_t i = 0; i < helpers; ++i) workers.emplace_back(work);
    work();
    workers.clear();
    error.rethrow();
  };
}

// Checks the types of the arrays of a quantised convolution.
void check_codes(const py::array& w, const std::optional<py::array>& b, const std::optional<py::array>& scale,
                 const std::optional<py::array>& offset, const std::optional<py::array>& sum_values) {
  if (!scale) throw InvalidArgument("x has codes: expected `scale`, float32 (K)");
  const std::tuple<const char*, const py::array*, const char*> all[] = {
      {"w", &w, "int8"},
      {"b", b ? &*b : nullptr, "int32"},
      {"scale", &*scale, "float32"},
      {"offset", offset ? &*offset : nullptr, "float32"},
      {"sum_values", sum_values ? &*sum_values : nullptr, "float32"}};
  for (const auto& [name, array, expected] : all) {
    if (array != nullptr && std::string(py::str(array->dtype())) != expected) {
      throw InvalidArgument(std::string(name) + " is " + std::string(py::str(array->dtype())) +
                            ": expected " + expected + ", because x has codes");
    }
  }
}

py::array conv(const py::array& x, const py::array& w, const std::optional<py::array>& b,
               const std::optional<py::array>& residual, const std::optional<py::array>& depthwise,
               const std::optional<py::array>& depthwise_bias, const std::optional<py::array>& scale,
               const std::optional<py::array>& offset, const std::optional<py::array>& sum_values,
               const std::string& algorithm, int threads, const std::string& instruction_set,
               const py::kwargs& attributes) {
  const ElementType type = type_of("x", x);
  if (is_code(type)) {
    check_codes(w, b, scale, offset, sum_values);
  } else if (type_of("w", w) != type || (b && type_of("b", *b) != type)) {
    throw InvalidArgument("x is " + std::string(name_of(type)) + ": expected w and b to be the same");
  }
  const std::pair<const char*, const std::optional<py::array>&> others[] = {
      {"residual", residual}, {"depthwise", depthwise}, {"depthwise_bias", depthwise_bias}};
  for (const auto& [name, array] : others) {
    if (array && type_of(name, *array) != type) {
      throw InvalidArgument("x is " + std::string(name_of(type)) + ": expected " + name + " to be the same");
    }
  }
  const auto shape_or_none = [](const std::optional<py::array>& array) {
    return array ? std::optional(shape_of(*array)) : std::nullopt;
  };
  const auto data_or_null = [](const std::optional<py::array>& array) {
    return array ? array->data() : nullptr;
  };
  ConvSpec spec = spec_of(type, "tf32", attributes);
  if (spec.quantization) {
    spec.quantization->has_offset = offset.has_value();
    check_sum_values(*spec.quantization, sum_values.has_value());
  }
  const ConvProblem problem =
      make_problem(spec, {shape_of(x), shape_of(w), shape_or_none(b), shape_or_none(residual),
                          shape_or_none(depthwise), shape_or_none(depthwise_bias), shape_or_none(scale),
                          shape_or_none(offset), shape_or_none(sum_values)});
  const Choice choice = convswap::choose(problem, cpu_device(), algorithm);
  if (!instruction_set.empty() && choice.algorithm.name() != "direct") {
    throw InvalidArgument("instruction_set '" + instruction_set + "' was given for the algorithm '" +
                          std::string(choice.algorithm.name()) + "': expected the algorithm 'direct'");
  }
  if (!instruction_set.empty() && !problem.depthwise.empty()) {
    throw InvalidArgument("instruction_set '" + instruction_set +
                          "' was given for a convolution with a depthwise convolution in front: expected one "
                          "convolution");
  }
  if (!instruction_set.empty() && !problem.layouts.are_nchw()) {
    throw InvalidArgument("instruction_set '" + instruction_set +
                          "' was given for tensors in NHWC: expected NCHW, which `direct` computes");
  }
  const std::unique_ptr<Plan> plan =
      instruction_set.empty() ? choice.offer.make() : make_direct_plan(problem, instruction_set);
  py::array y(py::dtype(std::string(name_of(problem.result_type()))), problem.result_shape());
  if (problem.result_elements() == 0) return y;
  const ConvTensors tensors{x.data(),
                            w.data(),
                            data_or_null(b),
                            y.mutable_data(),
                            data_or_null(residual),
                            data_or_null(depthwise),
                            data_or_null(depthwise_bias),
                            data_or_null(scale),
                            data_or_null(offset),
                            data_or_null(sum_values)};
  const py::gil_scoped_release released;
  // NaN in every type, so that an element that is never written shows.
  std::memset(tensors.y, 0xff,
              static_cast<size_t>(problem.result_elements() * bytes_per_element(problem.result_type())));
  // Aligned like the memory of ONNX Runtime's arena.
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(64)); }
  };
  const std::unique_ptr<std::byte[], Free> scratch(new (std::align_val_t(64))
                                                       std::byte[plan->scratch_bytes()]);
  plan->run(tensors, {parallel_for_with(threads), nullptr, scratch.get()});
  return y;
}

void register_problem(py::module_& module) {
  py::class_<ConvProblem>(module, "Problem")
      .def(py::init([](const Shape& x_shape, const Shape& w_shape, bool has_bias, const std::string& type,
                       const std::string& precision, const std::optional<Shape>& residual_shape,
                       const std::optional<Shape>& depthwise_shape, bool has_depthwise_bias,
                       const py::kwargs& attributes) {
             return problem_of(x_shape, w_shape, has_bias, residual_shape, depthwise_shape,
                               has_depthwise_bias, spec_of(parse_element_type(type), precision, attributes));
           }),
           py::arg("x_shape"), py::arg("w_shape"), py::arg("has_bias") = false, py::arg("type") = "float32",
           py::arg("precision") = "tf32", py::kw_only(), py::arg("residual_shape") = py::none(),
           py::arg("depthwise_shape") = py::none(), py::arg("has_depthwise_bias") = false)
      .def_property_readonly(
          "output_shape",
          [](const ConvProblem& problem) { return py::tuple(py::cast(problem.result_shape())); })
      .def_property_readonly("operations", &ConvProblem::operations)
      .def_property_readonly("bytes", &ConvProblem::bytes)
      .def_property_readonly("text", &ConvProblem::text);
}

// The name of an offer's tiling; empty if the algorithm has one only.
std::string tiling_of(const Offer& offer) { return offer.tiling == nullptr ? "" : offer.tiling(); }

// Estimates of some of an algorithm's tilings, for tables of coefficients that are not the device's.
class Estimates {
 public:
  Estimates(const ConvProblem& problem, const std::string& algorithm, const std::vector<std::string>& tilings,
            int index, int compute_capability) {
    const Device device = planned_device("cuda", index, compute_capability);
    const Algorithm& selected = convswap::choose(problem, device, algorithm).algorithm;
    std::map<std::string, Offer> offers;
    for (Offer& offer : alternatives_of(selected, problem, device, std::numeric_limits<std::size_t>::max())) {
      if (offer.milliseconds_for == nullptr) continue;
      offers.emplace(tiling_of(offer), std::move(offer));
    }
    for (const std::string& tiling : tilings) {
      const auto found = offers.find(tiling);
      offers_.push_back(found == offers.end() ? std::nullopt : std::optional(found->second));
    }
  }

  // Milliseconds of each tiling; None for a tiling that the algorithm does not have.
  std::vector<std::optional<double>> milliseconds(const CostValues& values) const {
    const auto table = std::make_shared<const CostTable>(CostTable{costs_from(values), {}});
    std::vector<std::optional<double>> times;
    for (const std::optional<Offer>& offer : offers_) {
      times.push_back(offer ? std::optional(offer->milliseconds_for(table)) : std::nullopt);
    }
    return times;
  }

 private:
  std::vector<std::optional<Offer>> offers_;
};

void register_costs(py::module_& module) {
  module.def("coefficients", [] {
    py::list all;
    for (const Coefficient& each : coefficients()) {
      all.append(py::make_tuple(each.family, each.name, each.unit, name_of(each.scale)));
    }
    return all;
  });
  module.def(
      "fitted_costs",
      [](int index, int compute_capability) {
        const FittedCosts& nearest = nearest_costs(planned_device("cuda", index, compute_capability));
        return std::pair(std::string(nearest.card), values_of(nearest.costs));
      },
      py::kw_only(), py::arg("index") = 0, py::arg("compute_capability") = 0);
  module.def(
      "cost_table",
      [](int index, int compute_capability) {
        const Device device = planned_device("cuda", index, compute_capability);
        return std::pair(device.costs->origin, values_of(device.costs->costs));
      },
      py::kw_only(), py::arg("index") = 0, py::arg("compute_capability") = 0);
  module.def(
      "with_factors",
      [](const CostValues& values, const std::map<std::string, double>& factors) {
        const std::vector<std::pair<std::string, double>> pairs(factors.begin(), factors.end());
        return values_of(with_factors(costs_from(values), pairs));
      },
      py::arg("values"), py::arg("factors"));
  module.attr("calibration_problem") = kCalibration;
  py::class_<Estimates>(module, "Estimates")
      .def(py::init<const ConvProblem&, const std::string&, const std::vector<std::string>&, int, int>(),
           py::arg("problem"), py::arg("algorithm"), py::arg("tilings"), py::kw_only(), py::arg("index") = 0,
           py::arg("compute_capability") = 0)
      .def("milliseconds", &Estimates::milliseconds, py::arg("values"));
}

void register_planner(py::module_& module) {
  py::class_<Algorithm>(module, "Algorithm")
      .def_property_readonly("name", [](const Algorithm& algorithm) { return std::string(algorithm.name()); })
      .def_property_readonly(
          "device", [](const Algorithm& algorithm) { return std::string(name_of(algorithm.device_kind())); })
      .def_property_readonly("by_name_alone",
                             [](const Algorithm& algorithm) { return algorithm.by_name_alone(); });
  module.def("catalog", &catalog, py::return_value_policy::reference);
  module.def("why_not", &why_not, py::arg("problem"), py::arg("algorithm"), py::arg("device"), py::kw_only(),
             py::arg("index") = 0, py::arg("compute_capability") = 0, py::arg("lends_scratch") = true);
  module.def("choose", &choose, py::arg("problem"), py::arg("device"), py::arg("algorithm") = "auto",
             py::kw_only(), py::arg("index") = 0, py::arg("compute_capability") = 0,
             py::arg("lends_scratch") = true, py::arg("tuned") = "");
  module.def("estimates", &estimates, py::arg("problem"), py::arg("device"), py::kw_only(),
             py::arg("index") = 0, py::arg("compute_capability") = 0);
  module.def(
      "describe_plan",
      [](const ConvProblem& problem, const std::string& device, const std::string& algorithm, int index) {
        const Device target = planned_device(device, index, 0);
        return convswap::choose(problem, target, algorithm).offer.make()->describe();
      },
      py::arg("problem"), py::arg("device"), py::arg("algorithm") = "auto", py::kw_only(),
      py::arg("index") = 0, py::call_guard<py::gil_scoped_release>());
  module.def(
      "alternatives",
      [](const ConvProblem& problem, const std::string& algorithm, int most, int index,
         int compute_capability) {
        const Device target = planned_device("cuda", index, compute_capability);
        const Algorithm& selected = convswap::choose(problem, target, algorithm).algorithm;
        const std::vector<Offer> offers =
            alternatives_of(selected, problem, target, static_cast<std::size_t>(most));
        const py::gil_scoped_acquire owner;
        py::list alternatives;
        for (const Offer& offer : offers) {
          py::dict alternative;
          alternative["tiling"] = tiling_of(offer);
          alternative["milliseconds"] = offer.milliseconds;
          alternative["kernels"] = offer.kernels();
          alternatives.append(alternative);
        }
        return alternatives;
      },
      py::arg("problem"), py::arg("algorithm"), py::arg("most") = 8, py::kw_only(), py::arg("index") = 0,
      py::arg("compute_capability") = 0, py::call_guard<py::gil_scoped_release>());
  module.def("kernels_of", &kernels_of, py::arg("problem"), py::arg("device"), py::arg("algorithm") = "auto",
             py::kw_only(), py::arg("index") = 0, py::arg("compute_capability") = 0, py::arg("tuned") = "");
  module.def("what_is_compiled", &compilation_notice, py::arg("problem"), py::arg("device"),
             py::arg("algorithm") = "auto", py::kw_only(), py::arg("index") = 0);
  module.def("explain", &explain_problem, py::arg("problem"), py::arg("device"),
             py::arg("algorithm") = "auto", py::kw_only(), py::arg("index") = 0,
             py::arg("compute_capability") = 0, py::arg("tuned") = "");
}

void register_conv(py::module_& module) {
  module.def("conv", &conv, py::arg("x").noconvert(), py::arg("w").noconvert(),
             py::arg("b").noconvert() = py::none(), py::kw_only(),
             py::arg("residual").noconvert() = py::none(), py::arg("depthwise").noconvert() = py::none(),
             py::arg("depthwise_bias").noconvert() = py::none(), py::arg("scale").noconvert() = py::none(),
             py::arg("offset").noconvert() = py::none(), py::arg("sum_values").noconvert() = py::none(),
             py::arg("algorithm") = "auto", py::arg("threads") = 0, py::arg("instruction_set") = "");
}

}  // namespace
}  // namespace convswap::bindings

PYBIND11_MODULE(_native, module) {
  using namespace convswap;
  using namespace convswap::bindings;
  module.doc() = "The compiled core of convswap: catalog, planner and direct calls.";
  module.attr("__version__") = CONVSWAP_VERSION;

  // Raises InvalidArgument as ConvswapError, the package's exception for all wrong arguments.
  static const py::object error_type = py::module_::import("convswap.errors").attr("ConvswapError");
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      PyErr_SetString(error_type.ptr(), error.what());
    }
  });

  register_problem(module);
  register_planner(module);
  register_costs(module);
  register_conv(module);
  register_kernels(module);
  register_tutorial(module);
  register_tuning(module);
  module.def("direct_instruction_sets", [] {
    std::vector<std::string> names;
    for (const auto name : direct_instruction_sets()) names.emplace_back(name);
    return names;
  });
  register_device(module);
}
