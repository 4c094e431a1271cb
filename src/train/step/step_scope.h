// StepScope: an optimizer step as a span of the profiles of the streams that work on it.
#pragma once

#include <optional>

#include "core/stream/profiler.h"

namespace hone {

class StepScope {
 public:
  /// Step `index`; `host`: the stream of experts on the CPU, or null.
  StepScope(Stream& device, Stream* host, int64_t index) : device_(device, ProfileKind::kStep, "step", "", index) {
    if (host != nullptr) host_.emplace(*host, ProfileKind::kStep, "step", "", index);
  }

 private:
  ProfileScope device_;
  std::optional<ProfileScope> host_;
};

}  // namespace hone
