// Profiler: which op of a stream ran when. A stream without a profiler pays one test of a pointer for each op.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/stream_clock.h"

namespace hone {

enum class ProfileKind { kStep, kBlock, kOp };

/// A stretch of a stream's work. Spans nest: ops in blocks, blocks in steps.
struct ProfileSpan {
  ProfileKind kind = ProfileKind::kOp;
  std::string_view name;      ///< "step", "block", or the op's name as recomputation policies know it
  std::string_view pass;      ///< "forward", "recompute", "backward", or "" outside of both
  int64_t index = 0;          ///< of a step or block
  double begin = 0, end = 0;  ///< seconds since the first span began
};

/// Collects spans while it is alive. Names are literals: they are not copied.
class Profiler {
 public:
  /// The stream reports to this profiler from here on; both outlive all its scopes.
  explicit Profiler(Stream& stream) : stream_(stream), clock_(stream) { stream.set_profiler(this); }
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Opens a span at the stream's present end; returns its number for close().
  size_t open(ProfileKind kind, std::string_view name, std::string_view pass, int64_t index);
  void close(size_t span);

  /// Waits; the closed spans in the order in which they were opened. Starts again from nothing.
  std::vector<ProfileSpan> take();

 private:
  struct Marks {
    size_t begin = 0, end = 0;
  };

  Stream& stream_;
  StreamClock clock_;
  std::vector<ProfileSpan> spans_;
  std::vector<Marks> marks_;  // parallel to spans_
};

/// A span for as long as it lives; nothing in a dry pass, or where nobody profiles.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, ProfileKind kind, std::string_view name, std::string_view pass = "", int64_t index = 0)
      : profiler_(stream.profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open(kind, name, pass, index);
  }
  ProfileScope(const Context& context, ProfileKind kind, std::string_view name, std::string_view pass = "",
               int64_t index = 0)
      : profiler_(context.dry() ? nullptr : context.stream().profiler()) {
    if (profiler_ != nullptr) span_ = profiler_->open(kind, name, pass, index);
  }
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profiler* profiler_;
  size_t span_ = 0;
};

}  // namespace hone
