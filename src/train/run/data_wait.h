// DataWait: how long a device has nothing to do because the host still prepares micro-batches.
#pragma once

#include "core/stream/stream_clock.h"
#include "train/run/wall_clock.h"

namespace hone {

/// Measures for each step how long the stream had finished its work while the next step's micro-batches were not ready.
/// Precise to some tens of microseconds on a GPU.
class DataWait {
 public:
  explicit DataWait(Stream& stream) : stream_(stream), clock_(stream) {}
  /// Waits for marks on a CPU, which the stream's queue writes here.
  ~DataWait();
  DataWait(const DataWait&) = delete;
  DataWait& operator=(const DataWait&) = delete;

  /// Calls `prepare` while the stream is empty: all of its time is waited.
  template <class Prepare>
  auto prepare_first(const Prepare& prepare) {
    const WallClock::time_point begin = WallClock::now();
    auto prepared = prepare();
    seconds_ += seconds_since(begin);
    return prepared;
  }
  /// Call before a step's work is queued, on an empty stream.
  void begin();
  /// Call when all of the step's work is queued; then `prepare` for the next step.
  template <class Prepare>
  auto prepare_beside(const Prepare& prepare) {
    clock_.mark();
    from_ = WallClock::now();
    auto prepared = prepare();
    to_ = WallClock::now();
    return prepared;
  }
  /// Seconds waited in this step; call when its work is finished.
  double take();

 private:
  Stream& stream_;
  StreamClock clock_;
  WallClock::time_point begin_, from_, to_;
  double seconds_ = 0;
};

}  // namespace hone
