#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "conv/spec.h"
#include "plan/algorithm.h"

namespace convswap::bindings {

// Reads a spec from keyword arguments, named like the attributes of LayoutConv in a model, which include
// those of Conv and FusedConv, and for codes like those of QuantConv. Codes take `y_type`, `y_zero_point` and
// `has_offset`, too. A missing argument or an empty sequence is an absent attribute. Throws InvalidArgument
// for other names, types or values.
ConvSpec spec_of(ElementType type, const std::string& precision, const pybind11::kwargs& attributes);

// Returns the members of KernelFacts as a dictionary.
pybind11::dict dict_of(const KernelFacts& kernel);

// Registers cuda_devices, DeviceArray and conv_device.
void register_device(pybind11::module_& module);

// Registers functions for kernels: their list, their compiler, packs and the kernel store.
void register_kernels(pybind11::module_& module);

// Registers LabSource and fill_shared_memory for the tutorial.
void register_tutorial(pybind11::module_& module);

// Registers functions for the tuning table: its path and its entries.
void register_tuning(pybind11::module_& module);

}  // namespace convswap::bindings
