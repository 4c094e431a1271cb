// Profiler: the times of a stream's ops and, on a CPU, the work of each thread of the pool. Without a profiler a stream
// has the cost of one pointer test per op, a pool of one per thread and loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/op_group.h"
#include "core/stream/context.h"
#include "core/stream/stream_clock.h"

namespace hone {

enum class ProfileKind {
  kStep,
  kBlock,
  kOp,
  kCollective,  ///< between ranks: concurrent with the stream on a GPU, in the stream on a CPU
  kWait,        ///< the stream waits for a collective: in an op, or between two
};

/// A section of the work of a stream, or of concurrent work. Spans nest: waits in ops, ops in blocks, blocks in steps.
struct ProfileSpan {
  ProfileKind kind = ProfileKind::kOp;
  std::string_view name;      ///< "step", "block", or the op's: Node::kind() of a node
  std::string_view pass;      ///< "forward", "recompute", "backward", or "" outside both; for collectives and waits
                              ///< their object: "layer 3"
  int64_t index = 0;          ///< the number of a step or block
  double begin = 0, end = 0;  ///< seconds since the first span began
  double bytes = 0;           ///< read and written by an op, if known: values and gradients, not weights; for
                              ///< a collective: of its tensor
  OpGroup group = OpGroup::kMemoryBound;  ///< the group of an op or a collective
  double flops = 0;                       ///< Node::flops() of a node's forward; 0 in backward
};

/// The work of one thread of the pool in one loop.
struct ThreadSpan {
  int thread = 0;
  int64_t tasks = 0;          ///< number of tasks of the loop that this thread ran
  int64_t op = -1;            ///< index of the op's span, -1 outside all ops
  double begin = 0, end = 0;  ///< as in ProfileSpan
};

struct Profile {
  std::vector<ProfileSpan> spans;                    ///< in the order of opening
  int threads = 0;                                   ///< in the pool; 0 on a GPU
  std::vector<ThreadSpan> loops;                     ///< by thread, each by time
  int64_t unrecorded_loops = 0;                      ///< thread spans that did not fit
  std::chrono::steady_clock::time_point start = {};  ///< when the host opened the first span
};

/// Maximum number of thread spans per thread between two calls of Profiler::take().
inline constexpr size_t kMostThreadSpans = 1 << 16;

/// Collects spans during its lifetime. Names are not copied: they are literals, or outlive the profile.
class Profiler {
 public:
  /// The stream reports to this profiler from now on; both must outlive all its scopes.
  explicit Profiler(Stream& stream);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Opens a span at the present end of the stream's queue, or of that of `beside`, another cudaStream_t of the device;
  /// returns its index for close(). take() sets the times.
  size_t open(const ProfileSpan& span, void* beside = nullptr);
  void close(size_t span);
  void set_work(size_t span, double bytes, double flops) {
    spans_[span].bytes = bytes;
    spans_[span].flops = flops;
  }

  /// Waits; returns the closed spans and clears the profiler.
  Profile take();

 private:
  class ThreadRecorder;
  struct Marks {
    size_t begin = 0, end = 0;
    void* beside = nullptr;
  };

  Stream& stream_;
  StreamClock clock_;
  std::vector<ProfileSpan> spans_;
  std::vector<Marks> marks_;  // parallel to spans_
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<ThreadRecorder> threads_;  // on a CPU
};

/// A span during its lifetime; does nothing in a dry pass, or without a profiler.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, ProfileKind kind, std::string_view name, std::string_view pass = "", int64_t index = 0)
      : profiler_(stream.profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open({.kind = kind, .name = name, .pass = pass, .index = index});
  }
  ProfileScope(const Context& context, ProfileKind kind, std::string_view name, std::string_view pass = "",
               int64_t index = 0)
      : profiler_(context.dry() ? nullptr : context.stream().profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open({.kind = kind, .name = name, .pass = pass, .index = index});
  }
  /// The span of an op.
  ProfileScope(const Context& context, OpGroup group, std::string_view name, std::string_view pass = "")
      : profiler_(context.dry() ? nullptr : context.stream().profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open({.name = name, .pass = pass, .group = group});
  }
  /// The span of a collective on `beside`, or in the stream if that is null.
  ProfileScope(Stream& stream, void* beside, OpGroup group, std::string_view name, std::string_view of, double bytes)
      : profiler_(stream.profiler()) {
    if (profiler_ == nullptr) return;
    span_ = profiler_->open(
        {.kind = ProfileKind::kCollective, .name = name, .pass = of, .bytes = bytes, .group = group}, beside);
  }
  ~ProfileScope();
  /// Whether there is a profiler.
  bool profiled() const { return profiler_ != nullptr; }
  /// Only if profiled(): sets ProfileSpan::bytes and ::flops.
  void set_work(double bytes, double flops) const { profiler_->set_work(span_, bytes, flops); }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profiler* profiler_;
  size_t span_ = 0;
};

}  // namespace hone
