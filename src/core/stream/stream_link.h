// StreamLink: order between the stream of a device and the stream of a CPU beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "core/base/error.h"
#include "core/stream/stream.h"

namespace hone {

class CudaLink;

/// Where a value is and where work runs: a device, or the host beside it.
enum class Side : uint8_t { kDevice, kHost };

inline Side other_side(Side side) { return side == Side::kDevice ? Side::kHost : Side::kDevice; }

/// A stream stops because the work that it waits for has failed; that stream has the cause.
class OtherStreamFailed : public Error {
 public:
  OtherStreamFailed() : Error(ExitCode::kDeviceFailed, "the work beside this has failed", "", "") {}
};

/// Marks in two streams, and waits of one stream for marks of the other. A wait ends whatever happens to the other
/// stream: work that fails, and work that is skipped after a failure, reaches its mark as failed. A CPU stream that
/// waits for it then fails with OtherStreamFailed. A GPU goes on with what is in memory: synchronize the host's stream
/// before results are used. Marks and waits must be queued in one order, by one thread at a time.
class StreamLink {
 public:
  /// `device`: of a GPU or a CPU; `host`: of a CPU. Both must outlive the link.
  StreamLink(Stream& device, Stream& host);
  ~StreamLink();
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  Stream& stream(Side side) const { return side == Side::kDevice ? device_ : host_; }

  /// Marks the work that is queued now on a side; returns the number of the mark, from 1.
  int64_t mark(Side side);
  /// Work queued later on the other side runs after mark `number` of `side`, if that is above 0.
  void await(Side side, int64_t number);
  /// Waits on the calling thread, which sleeps, until the host's stream has reached its mark `number`, as failed or
  /// not.
  void finish_on_host(int64_t number) const;
  /// Queues on the device's stream a copy of all of `from` to `to`, which has the same size: one of them is on the
  /// device, the other in memory of a HostBuffer of the device.
  void copy(Tensor to, Tensor from);

 private:
  class Progress;
  class Promise;
  struct End {
    std::shared_ptr<Progress> progress;                // set for a CPU stream
    std::map<int64_t, std::function<void()>> on_host;  // a GPU's waits for its last marks
    int64_t marks = 0, awaited = 0;
  };

  End& end(Side side) { return ends_[side == Side::kDevice ? 0 : 1]; }

  Stream& device_;
  Stream& host_;
  std::unique_ptr<CudaLink> cuda_;  // if the device is a GPU
  End ends_[2];
};

}  // namespace hone
