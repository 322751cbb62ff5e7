#pragma once

#include <utility>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/quantised/family.h"
#include "cuda/quantised/kernel.cuh"
#include "instances/pool.h"

namespace convswap::quantised {

// The emulated kernels of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  std::vector<CompiledKernel> kernels =
      for_each_instance<kDepthwiseInstances>([&]<DepthwiseInstance kInstance>() {
        return CompiledKernel(instance_name("quantised::depthwise", name, kInstance.arguments()),
                              depthwise<T, kInstance.width, kInstance.stride, kInstance.outputs>);
      });
  for (CompiledKernel& columns : for_each_instance<kColumnInstances>([&]<DepthwiseInstance kInstance>() {
         return CompiledKernel(
             instance_name("quantised::depthwise_columns", name, kInstance.column_arguments()),
             depthwise_columns<T, kInstance.width, kInstance.stride, kInstance.outputs, kInstance.words>);
       })) {
    kernels.push_back(std::move(columns));
  }
  kernels.emplace_back(instance_name("quantised::dense", name, "4"), dense<T, 4>);
  kernels.emplace_back(instance_name("quantised::dense", name, "8"), dense<T, 8>);
  kernels.emplace_back(instance_name("quantised::prepare_dense", name), prepare_dense<T>);
  kernels.emplace_back(instance_name("quantised::prepare_depthwise", name), prepare_depthwise<T>);
  kernels.emplace_back(instance_name("quantised::kernel", name), kernel<T>);
  for (CompiledKernel& pool : pool_kernels_for<T>(name)) kernels.push_back(std::move(pool));
  return kernels;
}

}  // namespace convswap::quantised
