// Functions for kernels: their list, their compiler, packs and the kernel store.

#include "cuda/host/kernels.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "conv/error.h"
#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_origin.h"
#include "cuda/runtime/kernel_store.h"
#include "cuda/runtime/loaded_kernels.h"
#include "plan/background.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

py::list list_families() {
  py::list families;
  for (const KernelFamily* family : kernel_families()) {
    py::dict facts;
    facts["header"] = family->header;
    facts["instances"] = family->instances;
    facts["least_capability"] = family->min_capability;
    facts["is_for_it_alone"] = family->is_arch_specific;
    families.append(facts);
  }
  return families;
}

py::object compiler_facts() {
  std::string why;
  const Compiler* const compiler = find_compiler(&why);
  py::dict facts;
  facts["why_not"] = why;
  if (compiler == nullptr) return facts;
  facts["version"] = compiler->version_text();
  facts["path"] = compiler->path();
  facts["compute_capabilities"] = compiler->compute_capabilities();
  return facts;
}

// request_for with an error for users if the instance is unknown.
KernelRequest request_of(const std::string& instance, int compute_capability) {
  try {
    return request_for(instance, compute_capability);
  } catch (const std::logic_error& error) {
    throw InvalidArgument(error.what());
  }
}

py::bytes compile_kernel(const std::string& instance, int compute_capability, bool keep) {
  const KernelRequest request = request_of(instance, compute_capability);
  KernelCode code;
  {
    const py::gil_scoped_release released;
    std::string why;
    const Compiler* const compiler = find_compiler(&why);
    if (compiler == nullptr) throw std::runtime_error(why);
    code = keep ? compiled_kernel(request) : compiler->compile(request);
  }
  return py::bytes(code.binary);
}

// Compiles in the background. Tests use it to end a process during a compilation.
void compile_ahead(const std::vector<std::string>& instances, int compute_capability) {
  for (const std::string& instance : instances) {
    in_background(Priority::high, [instance, compute_capability] {
      static_cast<void>(compiled_kernel(request_for(instance, compute_capability)));
    });
  }
}

// Collects the kernels of a pack. Threads may add kernels concurrently; a kernel is compiled when it is
// added.
class PackWriter {
 public:
  // Returns the size of the kernel's code in bytes.
  std::size_t add(const std::string& instance, int compute_capability, bool is_portable) {
    KernelRequest request = request_of(instance, compute_capability);
    request.is_portable = is_portable;
    KernelCode code = compiled_kernel(request);
    const std::size_t bytes = code.binary.size();
    const std::lock_guard<std::mutex> lock(mutex_);
    kernels_.emplace_back(std::move(request), std::move(code));
    return bytes;
  }

  // Writes the kernels sorted by name, so that the pack does not depend on the order of compilation.
  void write(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::ranges::sort(kernels_, {}, [](const auto& kernel) {
      const KernelRequest& request = kernel.first;
      return std::tuple(request.kernel, request.compute_capability, request.is_portable);
    });
    write_pack(path, kernels_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<KernelRequest, KernelCode>> kernels_;
};

py::list contents_of(const Pack* pack) {
  py::list kernels;
  if (pack == nullptr) return kernels;
  for (const auto& [kernel, capability] : pack->contents())
    kernels.append(py::make_tuple(kernel, capability));
  return kernels;
}

py::list pack_contents(const std::string& path) { return contents_of(Pack::read(path).get()); }

py::dict store_facts() {
  const KernelStoreFacts store = kernel_store_facts();
  py::dict facts;
  facts["folder"] = store.folder;
  facts["unused"] = store.unused;
  facts["kernels"] = store.kernel_count;
  facts["bytes"] = store.total_bytes;
  return facts;
}

}  // namespace

py::dict dict_of(const KernelFacts& kernel) {
  py::dict facts;
  facts["name"] = kernel.name;
  facts["registers"] = kernel.registers;
  facts["spilled_bytes"] = kernel.spilled_bytes;
  facts["shared_bytes"] = kernel.shared_bytes;
  facts["threads"] = kernel.threads;
  facts["blocks"] = kernel.blocks;
  return facts;
}

void register_kernels(py::module_& module) {
  module.def("kernel_families", &list_families);
  module.def("kernel_compiler", &compiler_facts);
  module.def("compile_kernel", &compile_kernel, py::arg("instance"), py::arg("compute_capability"),
             py::kw_only(), py::arg("keep") = true);
  py::class_<PackWriter>(module, "PackWriter")
      .def(py::init<>())
      .def("add", &PackWriter::add, py::arg("instance"), py::arg("compute_capability"), py::kw_only(),
           py::arg("is_portable") = false, py::call_guard<py::gil_scoped_release>())
      .def("write", &PackWriter::write, py::arg("path"));
  module.def("pack_contents", &pack_contents, py::arg("path"));
  module.def("ready_made_kernels", [] { return contents_of(ready_made_kernels()); });
  module.def("compile_ahead", &compile_ahead, py::arg("instances"), py::arg("compute_capability"));
  module.def("kernel_store", &store_facts);
  module.def("take_kernel_store_warning", &take_kernel_store_warning);
  module.def("clear_kernel_store", &clear_kernel_store);
}

}  // namespace convswap::bindings
