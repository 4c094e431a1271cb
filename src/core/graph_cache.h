// GraphCache: work that a stream is given again and again, recorded once as a CUDA graph. A graph of thousands of
// kernels is queued by one call, where the host would need longer to queue small kernels than a GPU to run them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/cuda_graph.h"
#include "core/stream.h"

namespace hone {

enum class GraphUse {
  kNever,
  kAuto,    ///< where the work can be recorded
  kAlways,  ///< work that cannot be recorded is an error
};

class GraphCache {
 public:
  /// All that the queued launches depend on; what they read from device memory may change freely.
  using Key = std::vector<int64_t>;

  /// Work is recorded when its key is seen for the second time, so shapes that never come again cost nothing. Of the
  /// kMostKeys keys seen last, the last kMostGraphs keep their graphs.
  static constexpr size_t kMostKeys = 64, kMostGraphs = 16;

  /// `settled` says whether everything that work reads is there, or awaited by the stream. As long as it is not, work
  /// is called, and awaits each thing where it reads it: a recording awaits nothing.
  GraphCache(Stream& stream, GraphUse use, std::function<bool()> settled)
      : stream_(stream), use_(use), settled_(std::move(settled)) {}

  /// Queues the launches of `work`: by calling it or, if this key's launches are recorded, from the recording. So
  /// `work` only launches (no uploads, no waits), at the same addresses whenever the key is the same, and what it
  /// changes on the host is nothing, or is set again by the caller; a call may be repeated. On a CPU, while a profiler
  /// looks at the stream, and until all is settled, `work` is just called.
  void run(const Key& key, const std::function<void()>& work);

  /// Forgets everything: addresses or launches are about to change.
  void clear() { entries_.clear(); }

  /// How the calls of run() were served.
  struct Counts {
    int64_t called = 0;    ///< work was called
    int64_t recorded = 0;  ///< work was called to be recorded, and the recording launched
    int64_t replayed = 0;  ///< work was not called
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Entry {
    Key key;
    std::unique_ptr<CudaGraph> graph;  // null: seen once
  };

  void call(const std::function<void()>& work);
  std::unique_ptr<CudaGraph> record(const std::function<void()>& work);
  void drop_oldest();

  Stream& stream_;
  GraphUse use_;
  std::function<bool()> settled_;
  std::list<Entry> entries_;  // used last comes first
  Counts counts_;
};

}  // namespace hone
