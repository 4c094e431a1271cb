// Arrival: values that are being sent by other ranks, beside the work of the stream that will read them. Callers always
// see complete parameters: Parameter::view() makes the stream wait, ParameterValue::stored() the host.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

namespace hone {

/// How to wait for values.
struct Arrival {
  std::function<void()> on_stream;  ///< work queued from now on finds the values
  std::function<void()> on_host;    ///< returns when the values have arrived
};

/// Whether a set of values is on its way. Any thread may wait for it.
class Arrivals {
 public:
  /// Values are on their way from now on. Replaces an earlier arrival, which ends before this one.
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
  /// The values will not arrive: their sender is lost.
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
