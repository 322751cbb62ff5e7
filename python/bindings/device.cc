// Functions of a GPU for tests and measurements: arrays in its memory, and direct calls on them.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "conv/error.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/kernel_origin.h"
#include "plan/planner.h"
#include "plan/prepared.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// An array in a card's memory, owned by Python and allocated by the driver. It is for tools; sessions use
// ONNX Runtime's arena. `fence` bytes of 0xff, which is NaN in each floating type, precede and follow the
// array.
class DeviceArray {
 public:
  DeviceArray(const Shape& shape, const std::string& type, int device, int64_t fence)
      : shape_(shape),
        type_(type == "int32" ? ElementType::int32 : parse_element_type(type)),
        device_(device),
        fence_(fence) {
    if (fence < 0 || fence % kAlignment != 0) {
      throw InvalidArgument("a fence of " + std::to_string(fence) + " bytes: expected a multiple of " +
                            std::to_string(kAlignment));
    }
    const DeviceGuard guard(device);
    CONVSWAP_CHECK_DRIVER(driver().cuMemAlloc(&begin_, allocated_bytes()));
    if (fence == 0) return;
    CONVSWAP_CHECK_DRIVER(driver().cuMemsetD8(begin_, 0xff, allocated_bytes()));
    CONVSWAP_CHECK_DRIVER(driver().cuCtxSynchronize());
  }
  ~DeviceArray() {
    try {
      const DeviceGuard guard(device_);
      static_cast<void>(driver().cuMemFree(begin_));
    } catch (const std::exception&) {
      // The driver may be gone while the process ends; the memory is then freed already.
    }
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void* pointer() const { return reinterpret_cast<void*>(address()); }
  const Shape& shape() const { return shape_; }
  ElementType type() const { return type_; }
  int device() const { return device_; }
  int64_t bytes() const {
    int64_t total = bytes_per_element(type_);
    for (const int64_t extent : shape_) total *= extent;
    return total;
  }

  static std::unique_ptr<DeviceArray> from_numpy(const py::array& source, int device, int64_t fence) {
    const py::array array = py::array::ensure(source, py::array::c_style);
    const std::string type = py::str(array.dtype());
    auto copy = std::make_unique<DeviceArray>(Shape(array.shape(), array.shape() + array.ndim()), type,
                                              device, fence);
    const DeviceGuard guard(device);
    if (copy->bytes() == 0) return copy;
    CONVSWAP_CHECK_DRIVER(
        driver().cuMemcpyHtoD(copy->address(), array.data(), static_cast<size_t>(copy->bytes())));
    // The call may return before the data have arrived, and other streams do not wait for the default stream.
    CONVSWAP_CHECK_DRIVER(driver().cuCtxSynchronize());
    return copy;
  }

  py::array to_numpy() const {
    // Importing ml_dtypes, a dependency of onnx, makes bfloat16 known to NumPy.
    if (type_ == ElementType::bfloat16) py::module_::import("ml_dtypes");
    py::array array(py::dtype(std::string(name_of(type_))), shape_);
    if (bytes() == 0) return array;
    const DeviceGuard guard(device_);
    CONVSWAP_CHECK_DRIVER(
        driver().cuMemcpyDtoH(array.mutable_data(), address(), static_cast<size_t>(bytes())));
    return array;
  }

  // Returns the offset of the first overwritten fence byte from the array's beginning: negative in the
  // leading fence, at least bytes() in the trailing fence. Empty if both fences are intact.
  std::optional<int64_t> damage() const {
    std::vector<unsigned char> fence(static_cast<size_t>(fence_));
    const DeviceGuard guard(device_);
    const auto is_intact = [](unsigned char byte) { return byte == 0xff; };
    for (const int64_t at : {-fence_, bytes()}) {
      const CUdeviceptr begin = address() + static_cast<CUdeviceptr>(at);
      CONVSWAP_CHECK_DRIVER(driver().cuMemcpyDtoH(fence.data(), begin, fence.size()));
      const auto first = std::ranges::find_if_not(fence, is_intact);
      if (first != fence.end()) return at + (first - fence.begin());
    }
    return std::nullopt;
  }

  // Sets every byte to 0xff, which is NaN in each floating type. An element that is never written then shows.
  void poison() {
    if (bytes() == 0) return;
    const DeviceGuard guard(device_);
    CONVSWAP_CHECK_DRIVER(driver().cuMemsetD8(address(), 0xff, static_cast<size_t>(bytes())));
    CONVSWAP_CHECK_DRIVER(driver().cuCtxSynchronize());
  }

 private:
  // A fence is a multiple of the driver's alignment, so the array is aligned as without a fence.
  static constexpr int64_t kAlignment = 256;

  CUdeviceptr address() const { return begin_ + static_cast<CUdeviceptr>(fence_); }
  // At least one byte, since a null pointer would mean an absent tensor.
  size_t allocated_bytes() const { return static_cast<size_t>(std::max<int64_t>(bytes() + 2 * fence_, 1)); }

  Shape shape_;
  ElementType type_;
  int device_;
  int64_t fence_;
  CUdeviceptr begin_ = 0;  // of the leading fence
};

// Measures GPU time by events on the default stream.
class Stopwatch {
 public:
  Stopwatch() {
    CONVSWAP_CHECK_DRIVER(driver().cuEventCreate(&begin_, CU_EVENT_DEFAULT));
    CONVSWAP_CHECK_DRIVER(driver().cuEventCreate(&end_, CU_EVENT_DEFAULT));
  }
  ~Stopwatch() {
    static_cast<void>(driver().cuEventDestroy(begin_));
    static_cast<void>(driver().cuEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Returns the GPU time of `runs` calls of `enqueue`, in milliseconds. With several runs a host function
  // blocks the stream until all are enqueued, because the host needs longer to launch short kernels than they
  // take.
  template <typename Enqueue>
  float milliseconds(int runs, const Enqueue& enqueue) const {
    constexpr std::chrono::microseconds kPerRun{10}, kMin{200}, kMax{300'000};
    for (auto hold = runs > 1 ? kMin + runs * kPerRun : std::chrono::microseconds{0};; hold *= 4) {
      const auto start = std::chrono::steady_clock::now();
      if (runs > 1) {
        // Runs in a thread of the driver.
        CONVSWAP_CHECK_DRIVER(
            driver().cuLaunchHostFunc(nullptr, wait, reinterpret_cast<void*>(hold.count())));
      }
      CONVSWAP_CHECK_DRIVER(driver().cuEventRecord(begin_, nullptr));
      for (int run = 0; run < runs; ++run) enqueue();
      CONVSWAP_CHECK_DRIVER(driver().cuEventRecord(end_, nullptr));
      const auto enqueued = std::chrono::steady_clock::now() - start;
      CONVSWAP_CHECK_DRIVER(driver().cuEventSynchronize(end_));
      // If a full launch queue blocks the host, no hold is long enough; but then the card always has work.
      if (enqueued <= hold || runs == 1 || 4 * hold > kMax) break;
    }
    float elapsed = 0;
    CONVSWAP_CHECK_DRIVER(driver().cuEventElapsedTime(&elapsed, begin_, end_));
    return elapsed;
  }

 private:
  static void wait(void* microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(microseconds)));
  }

  CUevent begin_{}, end_{};
};

void check_fits(const char* name, const DeviceArray& array, ElementType type, int device) {
  if (array.type() != type || array.device() != device) {
    throw InvalidArgument(std::string(name) + " is " + std::string(name_of(array.type())) + " on device " +
                          std::to_string(array.device()) + ": expected " + std::string(name_of(type)) +
                          " on device " + std::to_string(device) + ", as x is");
  }
}

// Makes the plan of one of the algorithm's alternatives. Alternative 0 is the algorithm's offer.
std::unique_ptr<Plan> plan_of(const ConvProblem& problem, const Device& device, const std::string& algorithm,
                              int alternative) {
  const Choice choice = choose(problem, device, algorithm);
  if (alternative == 0) return choice.offer.make();
  const std::vector<Offer> all = alternatives_of(choice.algorithm, problem, device,
                                                 static_cast<std::size_t>(std::max(0, alternative)) + 1);
  if (alternative < 0 || alternative >= static_cast<int>(all.size())) {
    throw InvalidArgument("alternative " + std::to_string(alternative) + ": " +
                          std::string(choice.algorithm.name()) + " has " + std::to_string(all.size()) +
                          " alternatives, numbered from 0");
  }
  return all.back().make();
}

// The arrays of a convolution on a card; absent inputs are null.
struct DeviceInputs {
  const DeviceArray& x;
  const DeviceArray& w;
  const DeviceArray* b = nullptr;
  const DeviceArray* residual = nullptr;
  const DeviceArray* depthwise = nullptr;
  const DeviceArray* depthwise_bias = nullptr;
  const DeviceArray* scale = nullptr;
  const DeviceArray* offset = nullptr;
  const DeviceArray* sum_values = nullptr;
};

std::optional<Shape> shape_or_none(const DeviceArray* array) {
  return array == nullptr ? std::nullopt : std::optional(array->shape());
}
const void* pointer_or_null(const DeviceArray* array) {
  return array == nullptr ? nullptr : array->pointer();
}

// Runs the plan `runs` times back to back; returns the mean time of a run in milliseconds.
double conv_device(const DeviceInputs& inputs, DeviceArray& y, const ConvSpec& spec,
                   const std::string& algorithm, int runs, int alternative, bool is_prepared,
                   const KernelOrigin* origin) {
  if (runs < 1) throw InvalidArgument("runs " + std::to_string(runs) + ": expected at least 1");
  const DeviceArray &x = inputs.x, &w = inputs.w;
  const ConvProblem problem = make_problem(
      spec, {x.shape(), w.shape(), shape_or_none(inputs.b), shape_or_none(inputs.residual),
             shape_or_none(inputs.depthwise), shape_or_none(inputs.depthwise_bias),
             shape_or_none(inputs.scale), shape_or_none(inputs.offset), shape_or_none(inputs.sum_values)});
  const bool has_codes = problem.is_quantised();
  const std::tuple<const char*, const DeviceArray*, ElementType> others[] = {
      {"w", &w, has_codes ? ElementType::int8 : spec.type},
      {"b", inputs.b, has_codes ? ElementType::int32 : spec.type},
      {"scale", inputs.scale, ElementType::float32},
      {"offset", inputs.offset, ElementType::float32},
      {"sum_values", inputs.sum_values, ElementType::float32},
      {"residual", inputs.residual, spec.type},
      {"depthwise", inputs.depthwise, spec.type},
      {"depthwise_bias", inputs.depthwise_bias, spec.type},
      {"y", &y, problem.result_type()}};
  for (const auto& [name, array, type] : others) {
    if (array != nullptr) check_fits(name, *array, type, x.device());
  }
  if (has_codes && inputs.scale == nullptr) {
    throw InvalidArgument("x has codes: expected `scale`, float32 (K)");
  }
  if (has_codes) check_sum_values(*problem.quantization, inputs.sum_values != nullptr);
  if (y.shape() != problem.result_shape()) {
    throw InvalidArgument(shape_message("y", y.shape(), list_text(problem.result_shape())));
  }
  if (problem.result_elements() == 0) return 0;
  const Device& device = cuda_device(x.device(), origin);
  const std::unique_ptr<Plan> plan = plan_of(problem, device, algorithm, alternative);
  const ConvTensors tensors{x.pointer(),
                            w.pointer(),
                            pointer_or_null(inputs.b),
                            y.pointer(),
                            pointer_or_null(inputs.residual),
                            pointer_or_null(inputs.depthwise),
                            pointer_or_null(inputs.depthwise_bias),
                            pointer_or_null(inputs.scale),
                            pointer_or_null(inputs.offset),
                            pointer_or_null(inputs.sum_values)};
  const std::size_t scratch_bytes = is_prepared ? plan->scratch_bytes() : scratch_bytes_with_weights(*plan);
  const DeviceArray scratch({static_cast<int64_t>(scratch_bytes / sizeof(float)) + 1}, "float32",
                            device.index, 0);
  const PreparedForm form = is_prepared ? plan->prepared_form() : PreparedForm{};
  const DeviceArray prepared({static_cast<int64_t>(form.bytes / sizeof(float)) + 1}, "float32", device.index,
                             0);
  const DeviceGuard guard(device.index);
  const Stopwatch stopwatch;
  if (form.bytes > 0) plan->prepare(w.pointer(), prepared.pointer(), nullptr);
  const Execution execution{.scratch = scratch.pointer(),
                            .prepared_weights = form.bytes > 0 ? prepared.pointer() : nullptr,
                            .weights_are_constant = true};
  const auto run = [&] {
    if (is_prepared) return plan->run(tensors, execution);
    prepare_and_run(*plan, tensors, execution);
  };
  return stopwatch.milliseconds(runs, run) / runs;
}

py::dict device_facts(int index) {
  const Device& device = cuda_device(index);
  py::dict facts;
  facts["name"] = device.name;
  facts["compute_capability"] = device.compute_capability;
  facts["multiprocessors"] = device.multiprocessors;
  facts["shared_memory_per_block"] = device.shared_memory_per_block;
  facts["memory_bandwidth"] = device.memory_bandwidth > 0 ? py::cast(device.memory_bandwidth) : py::none();
  facts["clock"] = device.clock > 0 ? py::cast(device.clock) : py::none();
  facts["is_restricted"] = device.is_restricted;
  facts["cost_table"] = device.costs->origin;
  facts["driver_cuda"] = version_text(driver().version);
  return facts;
}

void register_device_array(py::module_& module) {
  py::class_<DeviceArray>(module, "DeviceArray")
      // The first array on a card creates the card's context, which takes seconds.
      .def(py::init<const Shape&, const std::string&, int, int64_t>(), py::arg("shape"),
           py::arg("type") = "float32", py::arg("device") = 0, py::arg("fence") = 0,
           py::call_guard<py::gil_scoped_release>())
      .def_static("from_numpy", &DeviceArray::from_numpy, py::arg("array"), py::arg("device") = 0,
                  py::arg("fence") = 0)
      .def("to_numpy", &DeviceArray::to_numpy)
      .def("damage", &DeviceArray::damage)
      .def("poison", &DeviceArray::poison)
      .def_property_readonly("shape",
                             [](const DeviceArray& array) { return py::tuple(py::cast(array.shape())); })
      .def_property_readonly(
          "pointer", [](const DeviceArray& array) { return reinterpret_cast<uintptr_t>(array.pointer()); });
  module.def(
      "conv_device",
      [](const DeviceArray& x, const DeviceArray& w, const DeviceArray* b, DeviceArray& y,
         const DeviceArray* residual, const DeviceArray* depthwise, const DeviceArray* depthwise_bias,
         const DeviceArray* scale, const DeviceArray* offset, const DeviceArray* sum_values,
         const std::string& algorithm, const std::string& precision, int runs, int alternative, bool prepared,
         const std::string& pack, bool compiles, const std::map<std::string, std::string>& files,
         const py::kwargs& attributes) {
        ConvSpec spec = spec_of(x.type(), precision, attributes);
        if (spec.quantization) spec.quantization->has_offset = offset != nullptr;
        const py::gil_scoped_release released;
        return conv_device({x, w, b, residual, depthwise, depthwise_bias, scale, offset, sum_values}, y, spec,
                           algorithm, runs, alternative, prepared, kernel_origin(pack, compiles, files));
      },
      py::arg("x"), py::arg("w"), py::arg("b").none(true), py::arg("y"), py::kw_only(),
      py::arg("residual").none(true) = py::none(), py::arg("depthwise").none(true) = py::none(),
      py::arg("depthwise_bias").none(true) = py::none(), py::arg("scale").none(true) = py::none(),
      py::arg("offset").none(true) = py::none(), py::arg("sum_values").none(true) = py::none(),
      py::arg("algorithm") = "auto", py::arg("precision") = "tf32", py::arg("runs") = 1,
      py::arg("alternative") = 0, py::arg("prepared") = false, py::arg("pack") = "",
      py::arg("compiles") = true, py::arg("files") = std::map<std::string, std::string>());
}

}  // namespace

void register_device(py::module_& module) {
  module.def("cuda_devices", [] {
    py::list devices;
    for (int index = 0; index < cuda_device_count(); ++index) devices.append(device_facts(index));
    return devices;
  });
  register_device_array(module);
}

}  // namespace convswap::bindings
