// Functions for the tutorial's lab: a user's kernel file, its launch, its compilation and its attributes on a
// card.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/loaded_kernels.h"
#include "cuda/tutorial/lab/plan.h"
#include "cuda/tutorial/lab/source.h"
#include "plan/device.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

py::tuple tuple_of(const Dim3& dim) { return py::make_tuple(dim.x, dim.y, dim.z); }

py::tuple launch_shape(const lab::Source& source, const ConvProblem& problem, int64_t shared_limit) {
  const lab::LaunchShape shape = source.launch_for(problem, shared_limit);
  return py::make_tuple(tuple_of(shape.grid), tuple_of(shape.block), shape.shared_bytes);
}

py::bytes compiled(const lab::Source& source, int compute_capability) {
  KernelCode code;
  {
    const py::gil_scoped_release released;
    code = compiled_kernel(lab::request_for(source, compute_capability));
  }
  return py::bytes(code.binary);
}

int threads_per_multiprocessor(int index) {
  CUdevice card = 0;
  int threads = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGet(&card, index));
  CONVSWAP_CHECK_DRIVER(
      driver().cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, card));
  return threads;
}

py::dict facts_of_kernel(const lab::Source& source, const ConvProblem& problem, int index) {
  const Launch launch = lab::launch_of(source, problem, cuda_device(index));
  const DeviceGuard guard(index);
  py::dict facts = dict_of(kernel_facts(source.name(), launch));
  facts["resident_blocks"] = resident_blocks(launch);
  facts["threads_per_multiprocessor"] = threads_per_multiprocessor(index);
  return facts;
}

}  // namespace

void register_tutorial(py::module_& module) {
  py::class_<lab::Source>(module, "LabSource")
      .def(py::init(&lab::Source::parse), py::arg("name"), py::arg("text"))
      .def_property_readonly("interface",
                             [](const lab::Source& source) {
                               return source.interface() == lab::Interface::conv ? "conv" : "course";
                             })
      .def("why_not", &lab::Source::why_not, py::arg("problem"))
      .def("launch", &launch_shape, py::arg("problem"), py::arg("shared_limit"))
      .def("compile", &compiled, py::arg("compute_capability"))
      .def("facts", &facts_of_kernel, py::arg("problem"), py::kw_only(), py::arg("index") = 0);
  module.def(
      "fill_shared_memory",
      [](int index) {
        const DeviceGuard guard(index);
        lab::fill_shared_memory(cuda_device(index), nullptr);
        CONVSWAP_CHECK_DRIVER(driver().cuCtxSynchronize());
      },
      py::arg("index") = 0, py::call_guard<py::gil_scoped_release>());
}

}  // namespace convswap::bindings
