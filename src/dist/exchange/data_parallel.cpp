#include "dist/exchange/data_parallel.h"

#include <algorithm>

#include "core/stream/profiler.h"
#include "dist/exchange/bucket_arrival.h"
#include "dist/exchange/bucket_parts.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"

namespace hone {

DataParallel::DataParallel(const RankMesh* mesh, ParameterStore& store, const Context* host)
    : mesh_(mesh != nullptr && mesh->world().size() > 1 ? mesh : nullptr), store_(store), host_(host) {
  if (!several()) return;
  for (const Bucket& bucket : buckets()) {
    if (!bucket.shards_gradients()) whole_.push_back(&bucket);
    if (bucket.home().host_computed) on_host_ = &mesh->on_host();
  }
  HONE_ASSERT(on_host_ == nullptr || host_ != nullptr);
}

const Context& DataParallel::context_of(const Bucket& bucket, const Context& device) const {
  return bucket.home().host_computed ? *host_ : device;
}

DataParallel::~DataParallel() {
  if (several()) settle_values(buckets());
}

void DataParallel::join(Stream& stream, const Started& started, std::string_view of) {
  if (started.ranks == nullptr) return;
  const ProfileScope scope(stream, ProfileKind::kWait, "wait for", of);
  started.ranks->join(stream, started.call);
}

DataParallel::Started DataParallel::all_reduce(const Context& context, Communicator& ranks, const Bucket& bucket,
                                               const Tensor& gradients) {
  const ProfileScope scope(context.stream(), ranks.cuda_stream(), OpGroup::kCollectives, "all-reduce", bucket.name,
                           static_cast<double>(gradients.bytes()));
  ranks.all_reduce_sum(context.stream(), gradients);
  return {&ranks, ranks.calls()};
}

DataParallel::Started DataParallel::reduce_scatter(const Context& context, const Bucket& bucket, const Tensor& own) {
  Communicator& ranks = mesh_->shards();
  ranks.fork(context.stream());
  const ProfileScope scope(context.stream(), ranks.cuda_stream(), OpGroup::kCollectives, "reduce-scatter", bucket.name,
                           static_cast<double>(bucket.gradients.bytes()));
  ranks.reduce_scatter_sum(context.stream(), bucket.gradients, parts_of(bucket), own);
  return {&ranks, ranks.calls()};
}

DataParallel::Started DataParallel::reduce(const Context& context, const Bucket& bucket) {
  if (!bucket.sharded()) {
    Communicator* const ranks = bucket.home().host_computed ? on_host_
                                : bucket.kind.spread        ? mesh_->expert_replicas()
                                                            : &mesh_->world();
    if (ranks == nullptr) return {};
    const Context& summing = context_of(bucket, context);
    ranks->fork(summing.stream());
    return all_reduce(summing, *ranks, bucket, bucket.gradients);
  }
  const Started sum = reduce_scatter(context, bucket, {});
  if (mesh_->replicas() == nullptr) return sum;
  mesh_->replicas()->follow(*sum.ranks);
  return all_reduce(context, *mesh_->replicas(), bucket, own_part(bucket));
}

Tensor DataParallel::own_part(const Bucket& bucket) const {
  return elements_of(bucket.gradients, parts_of(bucket)[static_cast<size_t>(mesh_->shards().rank())]);
}

void DataParallel::begin_reduction(size_t passes) {
  passes_left_ = passes;
  sums_.clear();
  pending_.clear();
  begun_.clear();
  to_sum_of_.clear();
  group_sums_.clear();
}

void DataParallel::reduce_finished(const Context& context) {
  while (sums_.size() < whole_.size()) {
    const Bucket& bucket = *whole_[sums_.size()];
    const bool finished =
        bucket.kind.one_use && std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                                           [](const Parameter* p) { return p->gradient().written_in_pass(); });
    if (!finished) return;
    sums_.push_back(reduce(context, bucket));
  }
}

void DataParallel::reduce_rest(const Context& context) {
  while (sums_.size() < whole_.size()) sums_.push_back(reduce(context, *whole_[sums_.size()]));
}

void DataParallel::make_room(const Context& context, const ParameterGroup& group) {
  if (group.layer() < 0) return;
  const auto last = std::find_if(pending_.rbegin(), pending_.rend(),
                                 [&](const Pending& pending) { return pending.group->slot() == group.slot(); });
  settle(context, static_cast<size_t>(last - pending_.rbegin()));
}

void DataParallel::reduce_group(const Context& context, const ParameterGroup& group, bool idle) {
  for (const Bucket& bucket : buckets()) {
    if (!bucket.shards_gradients() || bucket.parameters.front()->group() != &group) continue;
    if (idle) {
      fill_zero(context, bucket.gradients);
    } else {
      ParameterStore::zero_unwritten(context, bucket.parameters);
    }
    const bool first = begun_.insert(&bucket).second;
    const Started sum = reduce_scatter(context, bucket, first ? bucket.own_gradients : Tensor{});
    pending_.push_back({&group, &bucket, sum, !first});
  }
}

void DataParallel::settle(const Context& context, size_t left) {
  for (; pending_.size() > left; pending_.pop_front()) {
    const Pending& pending = pending_.front();
    const Bucket& bucket = *pending.bucket;
    join(context.stream(), pending.sum, bucket.name);
    if (pending.adds) add(context, {.a = own_part(bucket), .b = {}, .y = bucket.own_gradients, .beta = 1.0f});
    if (mesh_->replicas() != nullptr && passes_left_ == 1) sum_over_groups(context, bucket);
  }
}

void DataParallel::sum_over_groups(const Context& context, const Bucket& bucket) {
  const Tensor& gradients = bucket.own_gradients;
  const bool adjacent =
      !to_sum_of_.empty() && gradients.dtype == to_sum_.dtype && gradients.data == element_at(to_sum_, to_sum_.numel());
  if (!adjacent) start_group_sum(context);
  to_sum_ = adjacent ? elements_of(to_sum_, {0, to_sum_.numel() + gradients.numel()}) : gradients;
  to_sum_of_.push_back(&bucket);
  if (static_cast<int64_t>(to_sum_.bytes()) >= mesh_->share().least_bucket_bytes) start_group_sum(context);
}

void DataParallel::start_group_sum(const Context& context) {
  if (to_sum_of_.empty()) return;
  mesh_->replicas()->fork(context.stream());
  const Started sum = all_reduce(context, *mesh_->replicas(), *to_sum_of_.front(), to_sum_);
  for (const Bucket* bucket : to_sum_of_) group_sums_[bucket] = sum;
  to_sum_of_.clear();
}

void DataParallel::finish_pass(const Context& context) {
  settle(context, 0);
  if (--passes_left_ == 0) start_group_sum(context);
}

void DataParallel::await_sums(const Context& context, const Bucket& bucket) {
  if (context.dry()) return;
  if (bucket.shards_gradients()) {
    if (mesh_->replicas() != nullptr) join(context.stream(), group_sums_.at(&bucket), bucket.name);
    return;
  }
  const auto index = std::find(whole_.begin(), whole_.end(), &bucket) - whole_.begin();
  join(context_of(bucket, context).stream(), sums_[static_cast<size_t>(index)], bucket.name);
}

void DataParallel::await_sums(const Context& context) {
  if (!several() || context.dry()) return;
  for (Communicator* ranks : mesh_->sums()) join(context.stream(), {ranks, ranks->calls()}, "gradients");
  if (on_host_ != nullptr) join(host_->stream(), {on_host_, on_host_->calls()}, "gradients");
}

void DataParallel::wait(const Context& context) {
  if (!several()) return;
  if (on_host_ != nullptr) on_host_->finish(host_->stream());
  for (Communicator* ranks : mesh_->sums()) ranks->finish(context.stream());
}

void DataParallel::sum(const Context& context, std::span<const Tensor> measurements) {
  if (!several() || context.dry()) return;
  Stream& stream = context.stream();
  Communicator& ranks = mesh_->world();
  ranks.fork(stream);
  for (const Tensor& tensor : measurements) {
    const ProfileScope scope(stream, ranks.cuda_stream(), OpGroup::kCollectives, "all-reduce", "measurements",
                             static_cast<double>(tensor.bytes()));
    ranks.all_reduce_sum(stream, tensor);
  }
  measurements_ = ranks.calls();
}

void DataParallel::await_measurements(const Context& context) {
  if (several() && !context.dry()) join(context.stream(), {&mesh_->world(), measurements_}, "measurements");
}

void DataParallel::gather_values(const Context& context, const Bucket& bucket) {
  if (context.dry() || bucket.kind.stage == ZeroStage::kNone || bucket.shards_values()) return;
  Stream& stream = context.stream();
  Communicator& ranks = mesh_->shards();
  ranks.fork(stream);
  {
    const ProfileScope scope(stream, ranks.cuda_stream(), OpGroup::kCollectives, "all-gather", bucket.name,
                             static_cast<double>(bucket.values.bytes()));
    ranks.all_gather(stream, bucket.values, parts_of(bucket));
  }
  expect_values<Communicator>(stream, bucket, {&ranks});
}

void DataParallel::gather_values(const Context& context) {
  for (size_t i = buckets().size(); i-- > 0;) gather_values(context, buckets()[i]);
}

}  // namespace hone
