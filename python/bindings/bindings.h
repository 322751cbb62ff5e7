#pragma once

#include <pybind11/pybind11.h>

namespace convswap::bindings {

// cuda_devices, DeviceArray and conv_device.
void register_device(pybind11::module_& module);

// The kernels: their list, their compiler and their store.
void register_kernels(pybind11::module_& module);

// What the tutorial has of its own.
void register_tutorial(pybind11::module_& module);

// The tuning table: where it is, what it holds.
void register_tuning(pybind11::module_& module);

}  // namespace convswap::bindings
