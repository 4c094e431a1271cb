// ContextOf: contexts for work on parameters between steps. Those on the host are worked on by the CPU, whatever the
// device of the others is.
#pragma once

#include <optional>

#include "core/stream/context.h"
#include "params/parameter.h"

namespace hone {

class ContextOf {
 public:
  /// `device`: for all other parameters; it must outlive this. Its stream's pool must not be in use by others.
  explicit ContextOf(const Context& device) : device_(device), scratch_(Device{}, "host") { scratch_.reserve(0); }

  const Context& operator()(const Parameter& parameter) {
    if (!parameter.value().home().host_computed || device_.device().kind == DeviceKind::kCpu) return device_;
    if (!stream_) {
      stream_.emplace(Device{}, device_.stream().pool());
      host_.emplace(*stream_, scratch_);
    }
    return *host_;
  }
  /// Waits for the work on parameters on the host.
  void finish() {
    if (stream_) stream_->synchronize();
  }

 private:
  const Context& device_;
  Arena scratch_;
  std::optional<Stream> stream_;
  std::optional<Context> host_;
};

}  // namespace hone
