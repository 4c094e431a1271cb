#include "weights/file_values.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/stream/profiler.h"
#include "params/payload.h"

namespace hone {

namespace {

/// Enough for a fast disk; the others compute.
constexpr int kMostThreads = 8;

int reading_threads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kMostThreads); }

}  // namespace

FileValues::FileValues(const Checkpoint& checkpoint, const CheckpointMap& map)
    : checkpoint_(checkpoint), map_(map), pool_(reading_threads()), loaders_(pool_.size()), server_([this] {
        serve();
      }) {}

FileValues::~FileValues() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  server_.join();
}

void FileValues::bring(Stream& stream, const Bucket& bucket) {
  auto slot_free = std::make_shared<std::promise<void>>();
  Read read{&bucket, slot_free->get_future(), {}};
  const std::shared_future<void> done = read.done.get_future().share();
  stream.call_after([slot_free] { slot_free->set_value(); });
  {
    const std::lock_guard lock(mutex_);
    reads_.push_back(std::move(read));
  }
  wake_.notify_one();
  bucket.arrivals->expect({.on_stream =
                               [&stream, &bucket, done] {
                                 const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket.name);
                                 if (stream.device().kind == DeviceKind::kCuda) return done.get();
                                 stream.enqueue([done](ThreadPool&) { done.get(); });
                               },
                           .on_host = [done] { done.get(); }});
}

void FileValues::serve() {
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || !reads_.empty(); });
    if (reads_.empty()) return;
    Read next = std::move(reads_.front());
    reads_.pop_front();
    lock.unlock();
    try {
      next.slot_free.get();  // throws if the stream has failed and skips its work
      read(*next.bucket);
      next.done.set_value();
    } catch (...) {
      next.done.set_exception(std::current_exception());
    }
  }
}

void FileValues::read(const Bucket& bucket) {
  loaders_.load(sources(bucket).pieces, pool_);
  checkpoint_.require_unchanged();
}

const FileValues::Sources& FileValues::sources(const Bucket& bucket) {
  const auto [at, is_new] = sources_.try_emplace(&bucket);
  if (!is_new) return at->second;
  Sources& sources = at->second;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& p = *bucket.parameters[i];
    const StoredValue slot{.slice = p.share().own(),
                           .payload = tensor_at(bucket.values, bucket.position(i, 0), whole_payload(p)),
                           .scales = {}};
    std::vector<LoadedSource> of_parameter = sources_of(checkpoint_, map_.layouts.at(&p), p, slot);
    std::move(of_parameter.begin(), of_parameter.end(), std::back_inserter(sources.list));
  }
  sources.pieces = pieces_of(sources.list);
  return sources;
}

}  // namespace hone
