#include "dist/data_parallel.h"

#include <algorithm>
#include <exception>

#include "core/profiler.h"

namespace hone {

DataParallel::DataParallel(Communicator& communicator, ParameterStore& store)
    : communicator_(communicator), store_(store) {
  HONE_ASSERT(communicator.size() > 1);
}

DataParallel::~DataParallel() {
  for (const Bucket& bucket : buckets()) {
    try {
      bucket.arrivals->await_on_host();
    } catch (const std::exception&) {  // a rank is lost, and who works with the others hears of it
      bucket.arrivals->forget();
    }
  }
}

bool DataParallel::shards() const { return store_.shards_state(); }

std::vector<Part> DataParallel::parts_of(const Bucket& bucket) const {
  return even_parts(bucket.elements, size(), Bucket::kAlignment);
}

void DataParallel::join(Stream& stream, int64_t calls, std::string_view of) {
  const ProfileScope scope(stream, ProfileKind::kWait, "wait for", of);
  communicator_.join(stream, calls);
}

void DataParallel::reduce(const Context& context, const Bucket& bucket) {
  Stream& stream = context.stream();
  communicator_.fork(stream);
  const ProfileScope scope(stream, communicator_.cuda_stream(), bucket.sharded ? "reduce-scatter" : "all-reduce",
                           bucket.name, static_cast<double>(bucket.gradients.bytes()));
  if (bucket.sharded) {
    communicator_.reduce_scatter_sum(stream, bucket.gradients, parts_of(bucket));
  } else {
    communicator_.all_reduce_sum(stream, bucket.gradients);
  }
  sums_.push_back(communicator_.calls());
}

void DataParallel::reduce_finished(const Context& context) {
  while (sums_.size() < buckets().size()) {
    const Bucket& bucket = buckets()[sums_.size()];
    const bool finished =
        bucket.one_use && std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                                      [](const Parameter* p) { return p->gradient_written_in_pass(); });
    if (!finished) return;
    reduce(context, bucket);
  }
}

void DataParallel::reduce_rest(const Context& context) {
  while (sums_.size() < buckets().size()) reduce(context, buckets()[sums_.size()]);
}

void DataParallel::await_sums(const Context& context, size_t index) {
  if (!context.dry()) join(context.stream(), sums_[index], buckets()[index].name);
}

void DataParallel::await_sums(const Context& context) { await_sums(context, buckets().size() - 1); }

void DataParallel::sum(const Context& context, std::span<const Tensor> measurements) {
  if (context.dry()) return;
  Stream& stream = context.stream();
  communicator_.fork(stream);
  for (const Tensor& tensor : measurements) {
    const ProfileScope scope(stream, communicator_.cuda_stream(), "all-reduce", "measurements",
                             static_cast<double>(tensor.bytes()));
    communicator_.all_reduce_sum(stream, tensor);
  }
  measurements_ = communicator_.calls();
}

void DataParallel::await_measurements(const Context& context) {
  if (!context.dry()) join(context.stream(), measurements_, "measurements");
}

void DataParallel::gather_values(const Context& context, const Bucket& bucket) {
  if (context.dry() || !bucket.sharded) return;
  Stream& stream = context.stream();
  communicator_.fork(stream);
  {
    const ProfileScope scope(stream, communicator_.cuda_stream(), "all-gather", bucket.name,
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
