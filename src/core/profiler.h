// Profiler: which op of a stream ran when and, on a CPU, what each thread of the pool did of it. A stream without a
// profiler pays one test of a pointer for each op, a pool one for each thread and loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/op_group.h"
#include "core/stream_clock.h"

namespace hone {

enum class ProfileKind {
  kStep,
  kBlock,
  kOp,
  kCollective,  ///< of ranks: beside the stream on a GPU, in it on a CPU
  kWait,        ///< the stream stands still until a collective has run: in an op, or between two
};

/// A stretch of a stream's work, or of what runs beside it. Spans nest: waits in ops, ops in blocks, blocks in steps.
struct ProfileSpan {
  ProfileKind kind = ProfileKind::kOp;
  std::string_view name;      ///< "step", "block", or the op's: Node::kind() of a node
  std::string_view pass;      ///< "forward", "recompute", "backward", or "" outside of both; of collectives and waits
                              ///< what they are of: "layer 3"
  int64_t index = 0;          ///< of a step or block
  double begin = 0, end = 0;  ///< seconds since the first span began
  double bytes = 0;           ///< that an op reads and writes, where known: of values and gradients, not of weights; of
                              ///< a collective: of its tensor
  OpGroup group = OpGroup::kMemoryBound;  ///< of an op or a collective
  double flops = 0;                       ///< Node::flops() of a node's forward; 0 in backward
};

/// What one thread of the pool did in one loop.
struct ThreadSpan {
  int thread = 0;
  int64_t tasks = 0;          ///< of the loop, that this thread ran
  int64_t op = -1;            ///< number of the op's span, -1 outside of all ops
  double begin = 0, end = 0;  ///< as of ProfileSpan
};

struct Profile {
  std::vector<ProfileSpan> spans;                    ///< in the order in which they were opened
  int threads = 0;                                   ///< of the pool; 0 on a GPU
  std::vector<ThreadSpan> loops;                     ///< thread after thread, each in the order of time
  int64_t unrecorded_loops = 0;                      ///< thread spans for which there was no room
  std::chrono::steady_clock::time_point start = {};  ///< when the host opened the first span
};

/// Thread spans that are kept between two calls of Profiler::take(), of each thread.
inline constexpr size_t kMostThreadSpans = 1 << 16;

/// Collects spans while it is alive. Names are not copied: they are literals, or live as long as the profile.
class Profiler {
 public:
  /// The stream reports to this profiler from here on; both outlive all its scopes.
  explicit Profiler(Stream& stream);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Opens a span at the stream's present end, or at that of `beside`, another cudaStream_t of the device; returns its
  /// number for close(). Times are filled in by take().
  size_t open(const ProfileSpan& span, void* beside = nullptr);
  void close(size_t span);
  void set_work(size_t span, double bytes, double flops) {
    spans_[span].bytes = bytes;
    spans_[span].flops = flops;
  }

  /// Waits; what was closed. Starts again from nothing.
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

/// A span for as long as it lives; nothing in a dry pass, or where nobody profiles.
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
  /// Of an op.
  ProfileScope(const Context& context, OpGroup group, std::string_view name, std::string_view pass = "")
      : profiler_(context.dry() ? nullptr : context.stream().profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open({.name = name, .pass = pass, .group = group});
  }
  /// Of a collective on `beside`, or in the stream if that is null.
  ProfileScope(Stream& stream, void* beside, OpGroup group, std::string_view name, std::string_view of, double bytes)
      : profiler_(stream.profiler()) {
    if (profiler_ == nullptr) return;
    span_ = profiler_->open(
        {.kind = ProfileKind::kCollective, .name = name, .pass = of, .bytes = bytes, .group = group}, beside);
  }
  ~ProfileScope();
  /// Whether somebody profiles.
  bool profiled() const { return profiler_ != nullptr; }
  /// If profiled(): ProfileSpan::bytes and ::flops.
  void set_work(double bytes, double flops) const { profiler_->set_work(span_, bytes, flops); }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profiler* profiler_;
  size_t span_ = 0;
};

}  // namespace hone
