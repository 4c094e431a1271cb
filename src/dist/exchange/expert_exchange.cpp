#include "dist/exchange/expert_exchange.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/stream/profiler.h"

namespace hone {

namespace {

/// The elements of each rank in a tensor of all ranks' rows.
std::vector<Part> parts_of_rows(const Tensor& all, std::span<const int64_t> rows) {
  int64_t width = 1;
  for (int i = 1; i < all.shape.rank(); ++i) width *= all.shape[i];
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    parts.push_back({begin * width, count * width});
    begin += count;
  }
  return parts;
}

/// Copies of tokens spare a GPU's multiprocessors; a CPU has nothing to spare.
bool copies(FetchWay way, Device device) {
  return way == FetchWay::kPeers || (way == FetchWay::kAuto && device.kind == DeviceKind::kCuda);
}

}  // namespace

ExpertExchange::ExpertExchange(int rank, int ranks, Communicator* group, int64_t round_tokens)
    : rank_(rank), ranks_(ranks), group_(group), round_tokens_(round_tokens) {
  HONE_ASSERT(group == nullptr || (group->rank() == rank && group->size() == ranks));
}

void ExpertExchange::begin_pass(std::vector<int64_t> tokens) {
  HONE_ASSERT(tokens.size() == static_cast<size_t>(ranks_));
  tokens_ = std::move(tokens);
}

size_t ExpertExchange::bytes(FetchWay way, Device device) const {
  if (!copies(way, device)) return 0;
  const size_t granularity = mapping_granularity(device);
  return granularity > 0 ? largest_.window(ranks_, granularity) : 0;
}

void ExpertExchange::connect(FetchWay way, Stream& stream) {
  if (group_ == nullptr || !copies(way, stream.device())) return;
  peers_.reset();
  std::string why_not;
  peers_ = PeerExchange::connect(group(), stream, largest_, why_not);
  if (peers_ || way != FetchWay::kPeers) return;
  throw UserError("ranks cannot copy tokens from each other: " + why_not, "weight_fetch", "use auto or collective");
}

int64_t ExpertExchange::gather(const Context& context, std::span<const Gathered> tensors,
                               std::span<const int64_t> rows) {
  if (context.dry()) {
    size_t bytes = 0;
    for (const Gathered& tensor : tensors) bytes += PeerExchange::staged_bytes(tensor.own);
    largest_.gathered = std::max(largest_.gathered, bytes);
    return 0;
  }
  if (peers_) return peers_->gather(context, tensors, rows);
  std::vector<Communicator::Gather> gathers;
  double bytes = 0;
  for (const Gathered& tensor : tensors) {
    gathers.push_back({tensor.all, parts_of_rows(tensor.all, rows), tensor.own});
    bytes += static_cast<double>(tensor.all.bytes());
  }
  group().fork(context.stream());
  const ProfileScope scope(context.stream(), group().cuda_stream(), OpGroup::kCollectives, "all-gather", "tokens",
                           bytes);
  group().all_gathers(context.stream(), gathers);
  return group().calls();
}

int64_t ExpertExchange::scatter_sum(const Context& context, const Tensor& all, const Tensor& own,
                                    std::span<const int64_t> rows) {
  if (context.dry()) {
    largest_.summed = std::max(largest_.summed, own.bytes());
    return 0;
  }
  if (peers_) return peers_->scatter_sum(context, all, own, rows);
  group().fork(context.stream());
  const ProfileScope scope(context.stream(), group().cuda_stream(), OpGroup::kCollectives, "reduce-scatter", "tokens",
                           static_cast<double>(all.bytes()));
  group().reduce_scatter_sum(context.stream(), all, parts_of_rows(all, rows), own);
  return group().calls();
}

void ExpertExchange::await(const Context& context, int64_t call) {
  if (context.dry()) return;
  peers_ ? peers_->await(context, call) : group().join(context.stream(), call);
}

}  // namespace hone
