// PassRunner: what tapes of equal passes, one after another, run on and in: the sides, and memory that dry passes size.
#pragma once

#include <optional>

#include "tape/host_side.h"
#include "tape/tape.h"

namespace hone {

class PassRunner {
 public:
  /// On `device`, which must outlive this, and with `host` on a side of the CPU, too.
  explicit PassRunner(Stream& device, bool host = false);

  const Context& context() const { return context_; }
  TapeMemory& memory() { return memory_; }
  const TapeMemory& memory() const { return memory_; }
  /// Null if all nodes run on the device.
  HostSide* host() { return host_ ? &*host_ : nullptr; }
  const Context* host_context() const { return host_ ? &host_->context() : nullptr; }

  /// A tape of a pass. In a dry pass it records `plan` if that is empty; else it follows it.
  Tape tape(TapePlan& plan, const TapeOptions& options = {}) { return {context_, memory_, plan, options, host()}; }

  /// Dry passes until reserve().
  void begin_dry();
  /// Runs pass() twice, dry: its tapes first record which values are kept, and then measure their memory.
  template <class Pass>
  void measure(const Pass& pass) {
    for (int i = 0; i < 2; ++i) {
      begin_dry();
      pass();
    }
  }
  /// Allocates what the last dry passes measured.
  void reserve();
  /// Waits for the work of both sides. Throws the first exception of it.
  void synchronize();
  /// The same, if there is a host side: before another wait, so that the cause of a failure is thrown. Else it does not
  /// wait.
  void await_host() {
    if (host_) host_->synchronize();
  }

 private:
  Stream& device_;
  TapeMemory memory_;
  Context context_;
  std::optional<HostSide> host_;
};

}  // namespace hone
