#include "dist/exchange/weight_fetcher.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/stream/profiler.h"
#include "dist/exchange/bucket_arrival.h"
#include "dist/exchange/bucket_parts.h"
#include "dist/exchange/peer_memory.h"

namespace hone {

namespace {

class GatherFetcher final : public WeightFetcher {
 public:
  explicit GatherFetcher(Communicator& ranks) : ranks_(ranks) {}

  std::string_view name() const override { return "all-gathers"; }

  void fetch(const Context& context, const Bucket& bucket, const CopyLane* own) override {
    Stream& stream = context.stream();
    const bool is_apart = own == nullptr && !bucket.layout.in_place;
    ranks_.fork(stream);
    if (own != nullptr) ranks_.follow(*own);
    {
      const ProfileScope scope(stream, ranks_.cuda_stream(), OpGroup::kCollectives, "all-gather", bucket.name,
                               static_cast<double>(bucket.values.bytes()));
      ranks_.all_gather(stream, bucket.values, moved_parts_of(bucket), is_apart ? bucket.own_values : Tensor{});
    }
    expect_values<Communicator>(stream, bucket, {&ranks_});
  }

 private:
  Communicator& ranks_;
};

/// Copies from peers; parts that are in host memory are gathered.
class PeerFetcher final : public WeightFetcher {
 public:
  PeerFetcher(Communicator& ranks, const ParameterStore& store, Stream& stream, std::unique_ptr<PeerMemory> memory)
      : ranks_(ranks), others_(ranks), memory_(std::move(memory)), flag_(stream.device(), sizeof(float)) {
    for (const Bucket& bucket : store.all_buckets()) {
      if (&bucket.home() != &kMapped) continue;
      indices_.emplace(&bucket, indices_.size());
      trains_ |= bucket.kind.trained;
    }
    const int lanes = std::min(ranks.size() - 1, kLanes);
    lanes_.reserve(static_cast<size_t>(lanes));
    for (int i = 0; i < lanes; ++i) lanes_.emplace_back(stream.device());
  }

  std::string_view name() const override { return "peer copies"; }

  void fetch(const Context& context, const Bucket& bucket, const CopyLane* own) override {
    if (bucket.home().offloaded()) return others_.fetch(context, bucket, own);
    ranks_.control().check();
    Stream& stream = context.stream();
    const std::vector<Part> parts = moved_parts_of(bucket);
    // Each rank begins with the next rank's part, so that no memory is read by all at once.
    const size_t first = bucket.layout.in_place ? 1 : 0;
    for (size_t lane = 0; lane < lanes_.size() && first + lane < parts.size(); ++lane) {
      std::vector<std::pair<Tensor, Tensor>> copies;
      double bytes = 0;
      for (size_t step = first + lane; step < parts.size(); step += lanes_.size()) {
        const size_t rank = (static_cast<size_t>(ranks_.rank()) + step) % parts.size();
        const Tensor to = elements_of(bucket.values, parts[rank]);
        Tensor from = to;
        from.data = memory_->at(static_cast<int>(rank), indices_.at(&bucket));
        if (to.numel() > 0) copies.emplace_back(to, from);
        bytes += static_cast<double>(to.bytes());
      }
      lanes_[lane].fork(stream);
      const ProfileScope scope(stream, lanes_[lane].cuda_stream(), OpGroup::kCollectives, "peer copy", bucket.name,
                               bytes);
      for (const auto& [to, from] : copies) lanes_[lane].copy(stream, to, from);
    }
    std::vector<CopyLane*> lanes;
    for (CopyLane& lane : lanes_) lanes.push_back(&lane);
    expect_values(stream, bucket, lanes);
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
  /// Copies from several ranks overlap.
  static constexpr int kLanes = 4;

  Communicator& ranks_;
  GatherFetcher others_;
  std::unique_ptr<PeerMemory> memory_;
  std::map<const Bucket*, size_t> indices_;  // in the memory
  bool trains_ = false;                      // any of the buckets
  Buffer flag_;                              // 0, for collectives that only order ranks
  std::vector<CopyLane> lanes_;              // last: their copies use the memory
};

/// Where the own parts of mapped buckets begin, in the order of the store.
std::vector<size_t> own_offsets(const ParameterStore& store) {
  std::vector<size_t> offsets;
  for (const Bucket& bucket : store.all_buckets()) {
    if (&bucket.home() == &kMapped) offsets.push_back(store.mapped_values()->own_offset(bucket));
  }
  return offsets;
}

}  // namespace

std::unique_ptr<WeightFetcher> make_fetcher(FetchWay way, Communicator& ranks, const ParameterStore& store,
                                            Stream& stream) {
  const MappedValues* values = store.mapped_values();
  const RankRange group{ranks.control().rank() - ranks.rank(), ranks.size()};
  std::string why_not = "their memory is not mapped";
  if (way != FetchWay::kCollectives && values != nullptr) {
    if (auto memory = PeerMemory::connect(ranks.control(), group, stream, values->own(), own_offsets(store), why_not)) {
      return std::make_unique<PeerFetcher>(ranks, store, stream, std::move(memory));
    }
  }
  if (way != FetchWay::kPeers) return std::make_unique<GatherFetcher>(ranks);
  throw UserError("ranks cannot copy weights from each other: " + why_not, "weight_fetch", "use auto or collective");
}

}  // namespace hone
