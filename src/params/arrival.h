// Arrival: parameters whose values are on their way from other ranks, beside the work of the stream that will read
// them. Nobody who reads a parameter has to know: Parameter::view() lets the stream wait, Parameter::value() the host.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

namespace hone {

/// How to wait for values.
struct Arrival {
  std::function<void()> on_stream;  ///< what is queued from now on finds them
  std::function<void()> on_host;    ///< they are there when it returns
};

/// Whether values that belong together are on their way. Any thread may wait for them.
class Arrivals {
 public:
  /// They are, from now on. Replaces an earlier arrival, which ends before this one.
  void expect(Arrival arrival) {
    const std::lock_guard lock(mutex_);
    arrival_ = std::move(arrival);
    expected_ = true;
  }
  bool expected() const { return expected_; }
  void await_on_stream() {
    if (expected_) settle(&Arrival::on_stream);
  }
  void await_on_host() {
    if (expected_) settle(&Arrival::on_host);
  }
  /// They will not come: whoever sent them is gone.
  void forget() { expected_ = false; }

 private:
  void settle(std::function<void()> Arrival::*wait) {
    const std::lock_guard lock(mutex_);
    if (!expected_) return;
    (arrival_.*wait)();
    expected_ = false;
  }

  std::mutex mutex_;
  std::atomic<bool> expected_ = false;
  Arrival arrival_;
};

}  // namespace hone
