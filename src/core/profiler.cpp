#include "core/profiler.h"

#include <exception>
#include <utility>

namespace hone {

Profiler::~Profiler() {
  stream_.set_profiler(nullptr);
  try {
    stream_.synchronize();  // queued marks write into the clock
  } catch (const std::exception&) {
    // Whoever cares about the failure has waited for it.
  }
}

size_t Profiler::open(ProfileKind kind, std::string_view name, std::string_view pass, int64_t index) {
  spans_.push_back({.kind = kind, .name = name, .pass = pass, .index = index});
  marks_.push_back({clock_.mark(), 0});
  return spans_.size() - 1;
}

void Profiler::close(size_t span) { marks_[span].end = clock_.mark(); }

ProfileScope::~ProfileScope() {
  if (profiler_ == nullptr) return;
  try {
    profiler_->close(span_);
  } catch (const std::exception&) {
    // The device has failed: the op in this scope, or who waits for the stream, says so.
  }
}

std::vector<ProfileSpan> Profiler::take() {
  const std::vector<double> seconds = clock_.seconds();
  for (size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].begin = seconds[marks_[i].begin];
    spans_[i].end = seconds[marks_[i].end];
  }
  clock_.clear();
  marks_.clear();
  return std::exchange(spans_, {});
}

}  // namespace hone
