#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "conv/spec.h"

namespace convswap::bindings {

// The spec of keyword arguments that are attributes of our Conv and FusedConv, by the names that they have in
// a model; one that is not given, or an empty sequence, is an absent attribute. Throws InvalidArgument for
// other names, types or values.
ConvSpec spec_of(ElementType type, const std::string& precision, const pybind11::kwargs& attributes);

}  // namespace convswap::bindings
