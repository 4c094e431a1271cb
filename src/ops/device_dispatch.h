// Chooses an op's implementation by the device its context runs on.
#pragma once

#include "core/context.h"

namespace hone {

/// Runs the implementation for the context's device.
template <class Args>
void dispatch(const Context& context, const Args& args, void (*on_cpu)(const Context&, const Args&)) {
  HONE_ASSERT(context.device().kind == DeviceKind::kCpu, "this build runs ops on CPUs only");
  on_cpu(context, args);
}

}  // namespace hone
