// Selects an op's implementation by the device of its context.
#pragma once

#include <type_traits>

#include "core/stream/context.h"

/// The CUDA implementation of an op, for dispatch(). In a build without CUDA null: a dry pass for a planned GPU
/// (core/cuda/planned_device.h) does nothing. Ops that take scratch memory there have a cuda:: function in every build
/// instead, in *_absent.cpp, which takes as much.
#if HONE_CUDA
#define HONE_CUDA_OP(name) (&::hone::cuda::name)
#else
#define HONE_CUDA_OP(name) nullptr
#endif

namespace hone {

/// Calls the implementation for the context's device: dispatch(context, args, &cpu::linear, HONE_CUDA_OP(linear)).
template <class Args>
void dispatch(const Context& context, const Args& args, void (*on_cpu)(const Context&, const Args&),
              std::type_identity_t<void (*)(const Context&, const Args&)> on_cuda) {
  if (context.device().kind == DeviceKind::kCpu) return on_cpu(context, args);
  if (on_cuda != nullptr) return on_cuda(context, args);
  HONE_ASSERT(context.dry(), "built without CUDA");
}

}  // namespace hone
