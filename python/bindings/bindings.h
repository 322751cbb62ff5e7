#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "conv/spec.h"
#include "plan/algorithm.h"

namespace convswap::bindings {

// The spec of keyword arguments that are attributes of our Conv and FusedConv, by the names that they have in
// a model; one that is not given, or an empty sequence, is an absent attribute. Throws InvalidArgument for
// other names, types or values.
ConvSpec spec_of(ElementType type, const std::string& precision, const pybind11::kwargs& attributes);

// A dictionary with the fields of the facts.
pybind11::dict dict_of(const KernelFacts& kernel);

// cuda_devices, DeviceArray and conv_device.
void register_device(pybind11::module_& module);

// The kernels: their list, their compiler and their store.
void register_kernels(pybind11::module_& module);

// What the tutorial has of its own.
void register_tutorial(pybind11::module_& module);

// The tuning table: where it is, what it holds.
void register_tuning(pybind11::module_& module);

}  // namespace convswap::bindings
