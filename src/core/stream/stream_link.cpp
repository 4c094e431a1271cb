#include "core/stream/stream_link.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/cuda/cuda_link.h"

namespace hone {

/// The marks that a CPU stream has reached.
class StreamLink::Progress {
 public:
  void reach(int64_t mark, bool failed) {
    {
      const std::lock_guard lock(mutex_);
      reached_ = std::max(reached_, mark);
      if (failed) failed_ = std::max(failed_, mark);
    }
    changed_.notify_all();
  }
  /// Waits for a mark; false if it, or a later one that has been reached, was reached as failed.
  bool wait(int64_t mark) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= mark; });
    return failed_ < mark;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t reached_ = 0, failed_ = 0;
};

/// Part of a stream's work: reaches a mark when the work runs or, as failed, when it is dropped.
class StreamLink::Promise {
 public:
  Promise(std::shared_ptr<Progress> progress, int64_t mark) : progress_(std::move(progress)), mark_(mark) {}
  ~Promise() {
    if (!kept_) progress_->reach(mark_, true);
  }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  void keep() {
    kept_ = true;
    progress_->reach(mark_, false);
  }

 private:
  std::shared_ptr<Progress> progress_;
  int64_t mark_;
  bool kept_ = false;
};

StreamLink::StreamLink(Stream& device, Stream& host) : device_(device), host_(host) {
  HONE_ASSERT(host.device().kind == DeviceKind::kCpu);
  const bool on_gpu = device.device().kind == DeviceKind::kCuda;
  if (on_gpu) cuda_ = std::make_unique<CudaLink>(device.cuda());
  if (!on_gpu) end(Side::kDevice).progress = std::make_shared<Progress>();
  end(Side::kHost).progress = std::make_shared<Progress>();
}

StreamLink::~StreamLink() = default;

int64_t StreamLink::mark(Side side) {
  constexpr size_t kMost = 8;  // marks of a GPU that are kept: a wait for an older one waits for a newer one
  End& of = end(side);
  const int64_t number = ++of.marks;
  if (of.progress) {
    const auto promise = std::make_shared<Promise>(of.progress, number);
    stream(side).enqueue([promise](ThreadPool&) { promise->keep(); });
    return number;
  }
  of.on_host.emplace(number, cuda_->mark());
  if (of.on_host.size() > kMost) of.on_host.erase(of.on_host.begin());
  return number;
}

void StreamLink::await(Side side, int64_t number) {
  End& of = end(side);
  HONE_ASSERT(number <= of.marks);
  if (number <= of.awaited) return;
  of.awaited = number;
  if (!of.progress) {
    // Whatever a newer mark waits for is queued on the host's stream already.
    return host_.enqueue([wait = of.on_host.lower_bound(number)->second](ThreadPool&) { wait(); });
  }
  Stream& waiting = stream(other_side(side));
  if (waiting.device().kind == DeviceKind::kCuda) {
    return cuda_->hold([progress = of.progress, number] { progress->wait(number); });
  }
  waiting.enqueue([progress = of.progress, number](ThreadPool&) {
    if (!progress->wait(number)) throw OtherStreamFailed();
  });
}

void StreamLink::finish_on_host(int64_t number) const { ends_[1].progress->wait(number); }

void StreamLink::copy(Tensor to, Tensor from) {
  HONE_ASSERT(to.bytes() == from.bytes());
  if (cuda_) return cuda_->copy(to.data, from.data, to.bytes());
  device_.enqueue([to, from](ThreadPool&) { std::memcpy(to.data, from.data, to.bytes()); });
}

}  // namespace hone
