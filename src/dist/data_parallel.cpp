#include "dist/data_parallel.h"

#include <algorithm>
#include <exception>

#include "core/profiler.h"
#include "dist/bucket_parts.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"

namespace hone {

DataParallel::DataParallel(Communicator& communicator, ParameterStore& store)
    : communicator_(communicator), store_(store) {
  HONE_ASSERT(communicator.size() > 1);
  for (const Bucket& bucket : buckets()) {
    if (!bucket.shards_gradients()) whole_.push_back(&bucket);
  }
}

DataParallel::~DataParallel() {
  for (const Bucket& bucket : buckets()) {
    try {
      bucket.arrivals->await_on_host();
    } catch (const std::exception&) {  // a rank is lost; other calls report it
      bucket.arrivals->forget();
    }
  }
}

void DataParallel::join(Stream& stream, int64_t calls, std::string_view of) {
  const ProfileScope scope(stream, ProfileKind::kWait, "wait for", of);
  communicator_.join(stream, calls);
}

int64_t DataParallel::reduce(const Context& context, const Bucket& bucket) {
  Stream& stream = context.stream();
  communicator_.fork(stream);
  const ProfileScope scope(stream, communicator_.cuda_stream(), OpGroup::kCollectives,
                           bucket.sharded() ? "reduce-scatter" : "all-reduce", bucket.name,
                           static_cast<double>(bucket.gradients.bytes()));
  if (bucket.sharded()) {
    communicator_.reduce_scatter_sum(stream, bucket.gradients, parts_of(bucket));
  } else {
    communicator_.all_reduce_sum(stream, bucket.gradients);
  }
  return communicator_.calls();
}

void DataParallel::begin_reduction() {
  sums_.clear();
  pending_.clear();
  settled_.clear();
}

void DataParallel::reduce_finished(const Context& context) {
  while (sums_.size() < whole_.size()) {
    const Bucket& bucket = *whole_[sums_.size()];
    const bool finished =
        bucket.one_use && std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                                      [](const Parameter* p) { return p->gradient_written_in_pass(); });
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
    pending_.push_back({&group, &bucket, reduce(context, bucket)});
  }
}

void DataParallel::settle(const Context& context, size_t left) {
  for (; pending_.size() > left; pending_.pop_front()) {
    const Bucket& bucket = *pending_.front().bucket;
    join(context.stream(), pending_.front().call, bucket.name);
    const Part part = parts_of(bucket)[static_cast<size_t>(rank())];
    const bool first = settled_.insert(&bucket).second;
    add(context, {.a = {element_at(bucket.gradients, part.offset),
                        bucket.gradients.dtype,
                        {part.count},
                        bucket.gradients.device},
                  .b = {},
                  .y = bucket.own_gradients,
                  .beta = first ? 0.0f : 1.0f});
  }
}

void DataParallel::await_sums(const Context& context, const Bucket& bucket) {
  if (context.dry() || bucket.shards_gradients()) return;
  const auto index = std::find(whole_.begin(), whole_.end(), &bucket) - whole_.begin();
  join(context.stream(), sums_[static_cast<size_t>(index)], bucket.name);
}

void DataParallel::await_sums(const Context& context) {
  if (!whole_.empty()) await_sums(context, *whole_.back());
}

void DataParallel::sum(const Context& context, std::span<const Tensor> measurements) {
  if (context.dry()) return;
  Stream& stream = context.stream();
  communicator_.fork(stream);
  for (const Tensor& tensor : measurements) {
    const ProfileScope scope(stream, communicator_.cuda_stream(), OpGroup::kCollectives, "all-reduce", "measurements",
                             static_cast<double>(tensor.bytes()));
    communicator_.all_reduce_sum(stream, tensor);
  }
  measurements_ = communicator_.calls();
}

void DataParallel::await_measurements(const Context& context) {
  if (!context.dry()) join(context.stream(), measurements_, "measurements");
}

void DataParallel::gather_values(const Context& context, const Bucket& bucket) {
  if (context.dry() || bucket.stage == ZeroStage::kNone || bucket.shards_values()) return;
  Stream& stream = context.stream();
  communicator_.fork(stream);
  {
    const ProfileScope scope(stream, communicator_.cuda_stream(), OpGroup::kCollectives, "all-gather", bucket.name,
                             static_cast<double>(bucket.values.bytes()));
    communicator_.all_gather(stream, bucket.values, parts_of(bucket));
  }
  const int64_t call = communicator_.calls();
  bucket.arrivals->expect({.on_stream = [this, &stream, call, &bucket] { join(stream, call, bucket.name); },
                           .on_host = [this, &stream, call] { communicator_.finish(stream, call); }});
}

void DataParallel::gather_values(const Context& context) {
  for (size_t i = buckets().size(); i-- > 0;) gather_values(context, buckets()[i]);
}

}  // namespace hone
