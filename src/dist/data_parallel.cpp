#include "dist/data_parallel.h"

#include <algorithm>

#include "core/profiler.h"

namespace hone {

bool DataParallel::shards() const { return store_.shards_state(); }

std::vector<Part> DataParallel::parts_of(const Bucket& bucket) const {
  return even_parts(bucket.elements, size(), Bucket::kAlignment);
}

void DataParallel::reduce(const Context& context, const Bucket& bucket) {
  const ProfileScope scope(context, ProfileKind::kOp, "reduce_gradients");
  communicator_.fork(context.stream());
  if (bucket.sharded) {
    communicator_.reduce_scatter_sum(context.stream(), bucket.gradients, parts_of(bucket));
  } else {
    communicator_.all_reduce_sum(context.stream(), bucket.gradients);
  }
}

void DataParallel::reduce_finished(const Context& context) {
  for (; reduced_ < buckets().size(); ++reduced_) {
    const Bucket& bucket = buckets()[reduced_];
    const bool finished =
        bucket.one_use && std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                                      [](const Parameter* p) { return p->gradient_written_in_pass(); });
    if (!finished) return;
    reduce(context, bucket);
  }
}

void DataParallel::reduce_rest(const Context& context) {
  for (; reduced_ < buckets().size(); ++reduced_) reduce(context, buckets()[reduced_]);
}

void DataParallel::sum(const Context& context, std::span<const Tensor> measurements) {
  if (context.dry()) return;
  const ProfileScope scope(context, ProfileKind::kOp, "reduce_measurements");
  communicator_.fork(context.stream());
  for (const Tensor& tensor : measurements) communicator_.all_reduce_sum(context.stream(), tensor);
  communicator_.join(context.stream());
}

void DataParallel::gather_values(const Context& context, const Bucket& bucket) {
  if (context.dry() || !bucket.sharded) return;
  const ProfileScope scope(context, ProfileKind::kOp, "gather_values");
  communicator_.fork(context.stream());
  communicator_.all_gather(context.stream(), bucket.values, parts_of(bucket));
}

void DataParallel::gather_values(const Context& context) {
  for (const Bucket& bucket : buckets()) gather_values(context, bucket);
  join(context);
}

}  // namespace hone
