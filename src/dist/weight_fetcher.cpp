#include "dist/weight_fetcher.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/profiler.h"
#include "dist/bucket_parts.h"
#include "dist/peer_memory.h"
#include "ops/cast/cast.h"

namespace hone {

namespace {

/// Elements of a part of a bucket's values.
Tensor part_of_values(const Bucket& bucket, const Part& part) {
  return {element_at(bucket.values, part.offset), bucket.values.dtype, {part.count}, bucket.values.device};
}

class GatherFetcher final : public WeightFetcher {
 public:
  explicit GatherFetcher(Communicator& ranks) : ranks_(ranks) {}

  std::string_view name() const override { return "all-gathers"; }

  void fetch(const Context& context, const Bucket& bucket, const CopyLane* own) override {
    Stream& stream = context.stream();
    const std::vector<Part> parts = moved_parts_of(bucket);
    const Part mine = parts[static_cast<size_t>(ranks_.rank())];
    if (own == nullptr) copy(context, bucket.own_values, part_of_values(bucket, mine));
    ranks_.fork(stream);
    if (own != nullptr) ranks_.follow(*own);
    {
      const ProfileScope scope(stream, ranks_.cuda_stream(), OpGroup::kCollectives, "all-gather", bucket.name,
                               static_cast<double>(bucket.values.bytes()));
      ranks_.all_gather(stream, bucket.values, parts);
    }
    bucket.arrivals->expect({.on_stream =
                                 [this, &stream, call = ranks_.calls(), &bucket] {
                                   const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket.name);
                                   ranks_.join(stream, call);
                                 },
                             .on_host = [this, &stream, call = ranks_.calls()] { ranks_.finish(stream, call); }});
  }

 private:
  Communicator& ranks_;
};

bool is_on_device(const Bucket& bucket) { return bucket.shards_values() && !bucket.in_host; }

/// Copies from peers; parts that are in host memory are gathered.
class PeerFetcher final : public WeightFetcher {
 public:
  PeerFetcher(Communicator& ranks, const ParameterStore& store, Stream& stream, std::unique_ptr<PeerMemory> memory)
      : ranks_(ranks), others_(ranks), memory_(std::move(memory)), flag_(stream.device(), sizeof(float)) {
    for (const Bucket& bucket : store.all_buckets()) {
      if (!is_on_device(bucket)) continue;
      indices_.emplace(&bucket, indices_.size());
      trains_ |= bucket.trained;
    }
    const int lanes = std::min(ranks.size(), kLanes);
    lanes_.reserve(static_cast<size_t>(lanes));
    for (int i = 0; i < lanes; ++i) lanes_.emplace_back(stream.device());
  }

  std::string_view name() const override { return "peer copies"; }

  void fetch(const Context& context, const Bucket& bucket, const CopyLane* own) override {
    if (bucket.in_host) return others_.fetch(context, bucket, own);
    ranks_.control().check();
    Stream& stream = context.stream();
    const std::vector<Part> parts = moved_parts_of(bucket);
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      lanes_[lane].fork(stream);
      const ProfileScope scope(stream, lanes_[lane].cuda_stream(), OpGroup::kCollectives, "peer copy", bucket.name,
                               static_cast<double>(bucket.values.bytes()) / static_cast<double>(lanes_.size()));
      // Each rank begins with its own part and goes on with the next rank's, so that no memory is read by all at once.
      for (size_t step = lane; step < parts.size(); step += lanes_.size()) {
        const size_t rank = (static_cast<size_t>(ranks_.rank()) + step) % parts.size();
        if (parts[rank].count == 0) continue;
        const Tensor to = part_of_values(bucket, parts[rank]);
        Tensor from = to;
        from.data = memory_->at(static_cast<int>(rank), indices_.at(&bucket));
        lanes_[lane].copy(stream, to, from);
      }
    }
    std::vector<int64_t> calls;
    for (const CopyLane& lane : lanes_) calls.push_back(lane.calls());
    bucket.arrivals->expect({.on_stream =
                                 [this, &stream, calls, &bucket] {
                                   const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket.name);
                                   for (size_t i = 0; i < calls.size(); ++i) lanes_[i].join(stream, calls[i]);
                                 },
                             .on_host =
                                 [this, &stream, calls] {
                                   for (size_t i = 0; i < calls.size(); ++i) lanes_[i].finish(stream, calls[i]);
                                 }});
  }

  void begin_update(const Context& context) override {
    if (!trains_) return;
    for (CopyLane& lane : lanes_) lane.join(context.stream(), lane.calls());
  }

  void end_update(const Context& context) override {
    if (!trains_) return;
    Stream& stream = context.stream();
    ranks_.fork(stream);
    {
      const ProfileScope scope(stream, ranks_.cuda_stream(), OpGroup::kCollectives, "all-reduce", "new weights", 4);
      ranks_.all_reduce_sum(stream, flag_.tensor({1}, DType::kF32));
    }
    ranks_.join(stream);
  }

 private:
  /// Two keep an engine busy in each direction; more let copies from several ranks overlap.
  static constexpr int kLanes = 4;

  Communicator& ranks_;
  GatherFetcher others_;
  std::unique_ptr<PeerMemory> memory_;
  std::map<const Bucket*, size_t> indices_;  // in the memory
  bool trains_ = false;                      // any of the buckets
  Buffer flag_;                              // 0, for collectives that only order ranks
  std::vector<CopyLane> lanes_;              // last: their copies use the memory
};

std::vector<Tensor> own_values(const ParameterStore& store) {
  std::vector<Tensor> own;
  for (const Bucket& bucket : store.all_buckets()) {
    if (is_on_device(bucket)) own.push_back(bucket.own_values);
  }
  return own;
}

}  // namespace

std::unique_ptr<WeightFetcher> make_fetcher(FetchWay way, Communicator& ranks, const ParameterStore& store,
                                            Stream& stream) {
  const std::vector<Tensor> own = own_values(store);
  const bool tries_peers =
      way == FetchWay::kPeers || (way == FetchWay::kAuto && stream.device().kind == DeviceKind::kCuda);
  if (!tries_peers || own.empty()) return std::make_unique<GatherFetcher>(ranks);
  std::string why_not;
  if (auto memory = PeerMemory::connect(ranks.control(), stream, own, why_not)) {
    return std::make_unique<PeerFetcher>(ranks, store, stream, std::move(memory));
  }
  if (way == FetchWay::kAuto) return std::make_unique<GatherFetcher>(ranks);
  throw UserError("ranks cannot copy weights from each other: " + why_not, "weight_fetch", "use auto or collective");
}

}  // namespace hone
