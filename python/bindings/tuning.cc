// The planner's reader of tuning tables, so that Python writes tables that the planner can read.

#include "plan/tuning.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bindings.h"
#include "conv/error.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

// Decodes a path, which may have any bytes, as Python's file functions do (surrogateescape).
py::object path_object(const std::string& path) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

py::object path_of_table() {
  const std::string path = tuning_path();
  if (path.empty()) {
    throw InvalidArgument(
        "there is no home folder to keep the tuning table in; set CONVSWAP_TUNING to the path of a file");
  }
  return path_object(path);
}

py::tuple table() {
  const TuningTable read = read_tuning_table();
  py::list entries;
  for (const TuningEntry& entry : read.entries) {
    py::dict milliseconds;
    for (const auto& [name, value] : entry.milliseconds) milliseconds[py::str(name)] = value;
    entries.append(py::make_tuple(entry.device, entry.version, entry.problem, entry.algorithm, milliseconds));
  }
  return py::make_tuple(entries, read.damage);
}

std::string device_name(const std::string& device, int index) {
  return tuning_device(parse_device(device) == DeviceKind::cpu ? cpu_device() : cuda_device(index));
}

}  // namespace

void register_tuning(py::module_& module) {
  module.attr("tuning_header") = std::string(kTuningHeader);
  module.def("tuning_path", &path_of_table);
  module.def("tuning_device", &device_name, py::arg("device"), py::kw_only(), py::arg("index") = 0);
  module.def("read_tuning_table", &table);
  module.def("take_tuning_warning", [] { return path_object(take_tuning_warning()); });
}

}  // namespace convswap::bindings
