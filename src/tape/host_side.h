// HostSide: a CPU beside the device of a tape, on which some nodes run (Tape::on_host): a stream with threads of its
// own, the memory of its values, and the way between the two memories.
//
// Values cross through memory that the device's copies reach (pinned for a GPU): the device's stream copies to or from
// it, the host's stream copies between it and the host's values. Each of the two streams therefore touches its own
// arenas only, in the order of its own work, and waits for the other where values cross. Work is queued ahead of both,
// by a few blocks. The device may be a CPU, too: then two streams of one machine work beside each other.
//
// Who waits for queued work calls HostSide::synchronize() before any other wait: it throws the cause of a failure, not
// that the other side has stopped.
#pragma once

#include <deque>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/memory/host_buffer.h"
#include "core/stream/stream_link.h"
#include "tape/tape.h"

namespace hone {

class HostSide {
 public:
  /// For tapes on `device`, which must outlive this; with as many threads as its pool has.
  explicit HostSide(Stream& device);
  /// Waits for both streams.
  ~HostSide();
  HostSide(const HostSide&) = delete;
  HostSide& operator=(const HostSide&) = delete;

  const Context& context() const { return context_; }
  Stream& stream() { return stream_; }
  TapeMemory& memory() { return memory_; }

  /// Values on their way: `to` and `from` have equal sizes.
  struct Crossing {
    Tensor to, from;
  };
  /// Queues the copies of values to a side, on both streams: work queued later on that side reads them. In a dry pass
  /// they are counted. Waits if either side is kAhead crossings or blocks behind.
  void cross(Side to, const std::vector<Crossing>& values);
  /// Call it before the work of a block of the tape is queued, or of its backward. Waits likewise.
  void enter_block();

  /// As TapeMemory's; call them together with those of the tape's memory.
  void begin_dry();
  void reserve();
  /// Bytes of host memory (dry: high-water marks).
  size_t bytes() const;

  /// Waits for both streams. Throws the first exception of their work: the cause, if one stopped because of the other.
  void synchronize();

 private:
  /// The memory through which values go to one side.
  struct Way {
    HostBuffer memory;
    size_t high_water = 0;
    int64_t left = 0;  ///< the mark after which the side has taken the last values
  };

  /// The queue of a GPU is finite: a thread that fills it would wait with a busy core, which the experts need.
  static constexpr size_t kAhead = 8;

  /// Waits until fewer than kAhead of the host's marks that were given to this, `mark` the last, are ahead of it.
  void limit_ahead(int64_t mark);
  /// Queues a copy in host memory on the host's stream.
  void copy_on_host(Tensor to, Tensor from);

  Stream& device_;
  Way to_host_, to_device_;
  std::deque<int64_t> ahead_;  // the host's marks after the last crossings and blocks
  bool crossed_ = false;       // since the last block began
  TapeMemory memory_;
  ThreadPool pool_;
  Stream stream_;
  Context context_;
  std::unique_ptr<StreamLink> link_;  // null for a planned GPU
};

}  // namespace hone
