#include "core/stream/profiler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/cpu/thread_pool.h"

namespace hone {

namespace {

struct LoopPart {
  LoopObserver::Time begin, end;
  int64_t tasks = 0;
};

/// The op that runs at `time`, or -1.
int64_t op_at(double time, const std::vector<ProfileSpan>& spans, const std::vector<int64_t>& ops) {
  const auto after = std::upper_bound(ops.begin(), ops.end(), time,
                                      [&](double t, int64_t op) { return t < spans[static_cast<size_t>(op)].begin; });
  if (after == ops.begin()) return -1;
  const int64_t op = *(after - 1);
  return time < spans[static_cast<size_t>(op)].end ? op : -1;
}

}  // namespace

/// Records the work of each thread of a pool. take() converts the times to seconds of the stream's clock, and assigns
/// them to ops.
class Profiler::ThreadRecorder : public LoopObserver {
 public:
  explicit ThreadRecorder(int threads) : lanes_(static_cast<size_t>(threads)) {
    for (Lane& lane : lanes_) lane.parts.reserve(kMostThreadSpans);  // memory is touched as it fills
  }

  void ran(int thread, int64_t tasks, Time begin, Time end) noexcept override {
    Lane& lane = lanes_[static_cast<size_t>(thread)];
    if (tasks == 0) return;
    if (lane.parts.size() == kMostThreadSpans) {
      ++lane.unrecorded;
      return;
    }
    lane.parts.push_back({begin, end, tasks});
  }

  /// Moves the loops to `profile`, whose spans are complete. `start`: when the first span began.
  void take(Profile& profile, Time start) {
    std::vector<int64_t> ops;
    for (size_t i = 0; i < profile.spans.size(); ++i) {
      const ProfileKind kind = profile.spans[i].kind;
      if (kind == ProfileKind::kOp || kind == ProfileKind::kCollective) ops.push_back(static_cast<int64_t>(i));
    }
    const auto seconds = [&](Time time) { return std::chrono::duration<double>(time - start).count(); };
    profile.threads = static_cast<int>(lanes_.size());
    for (size_t thread = 0; thread < lanes_.size(); ++thread) {
      Lane& lane = lanes_[thread];
      // A loop inside a task is reported before the task.
      std::stable_sort(lane.parts.begin(), lane.parts.end(),
                       [](const LoopPart& a, const LoopPart& b) { return a.begin < b.begin; });
      for (const LoopPart& part : lane.parts) {
        const double begin = seconds(part.begin);
        if (begin < 0) continue;
        profile.loops.push_back(
            {static_cast<int>(thread), part.tasks, op_at(begin, profile.spans, ops), begin, seconds(part.end)});
      }
      profile.unrecorded_loops += lane.unrecorded;
      lane.parts.clear();
      lane.unrecorded = 0;
    }
  }

 private:
  struct alignas(64) Lane {  // one cache line each: threads write at the same time
    std::vector<LoopPart> parts;
    int64_t unrecorded = 0;
  };
  std::vector<Lane> lanes_;
};

Profiler::Profiler(Stream& stream) : stream_(stream), clock_(stream) {
  stream.set_profiler(this);
  if (stream.device().kind != DeviceKind::kCpu) return;
  threads_ = std::make_unique<ThreadRecorder>(stream.pool().size());
  stream.enqueue([observer = threads_.get()](ThreadPool& pool) { pool.set_observer(observer); });
}

Profiler::~Profiler() {
  stream_.set_profiler(nullptr);
  try {
    stream_.synchronize();  // queued marks write into the clock
  } catch (const std::exception&) {
    // The failure has been reported to those that wait for the stream.
  }
  if (threads_) stream_.pool().set_observer(nullptr);
}

size_t Profiler::open(const ProfileSpan& span, void* beside) {
  if (spans_.empty()) start_ = std::chrono::steady_clock::now();
  spans_.push_back(span);
  marks_.push_back({clock_.mark(beside), 0, beside});
  return spans_.size() - 1;
}

void Profiler::close(size_t span) { marks_[span].end = clock_.mark(marks_[span].beside); }

ProfileScope::~ProfileScope() {
  if (profiler_ == nullptr) return;
  try {
    profiler_->close(span_);
  } catch (const std::exception&) {
    // The device has failed: the op in this scope, or the next wait for the stream, reports it.
  }
}

Profile Profiler::take() {
  const std::vector<double> seconds = clock_.seconds();
  for (size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].begin = seconds[marks_[i].begin];
    spans_[i].end = seconds[marks_[i].end];
  }
  Profile profile;
  profile.start = start_;
  profile.spans = std::exchange(spans_, {});
  if (threads_ && !seconds.empty()) threads_->take(profile, clock_.start());
  clock_.clear();
  marks_.clear();
  return profile;
}

}  // namespace hone
