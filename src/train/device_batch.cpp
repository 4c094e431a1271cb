#include "train/device_batch.h"

#include <algorithm>

#include "core/arena.h"

namespace hone {

namespace {

size_t aligned(int64_t elements, size_t size) {
  return (static_cast<size_t>(elements) * size + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

DeviceBatchMemory::DeviceBatchMemory(Device device, const BatchCapacity& capacity) : capacity_(capacity) {
  memory_ = Buffer(device, 2 * aligned(capacity.max_tokens, 4) + aligned(capacity.max_tokens, 8) +
                               aligned(capacity.max_documents + 1, 4) +
                               3 * aligned(std::max<int64_t>(capacity.max_supervised, 1), 4));
}

DeviceBatch DeviceBatchMemory::views(int64_t tokens, int64_t documents, int64_t supervised) const {
  HONE_ASSERT(
      tokens <= capacity_.max_tokens && documents <= capacity_.max_documents && supervised <= capacity_.max_supervised,
      "a micro-batch is larger than the run's capacity");
  DeviceBatch batch;
  batch.tokens = tokens;
  batch.documents = documents;
  batch.supervised = supervised;
  size_t offset = 0;
  const auto next = [&](int64_t count, int64_t most, DType dtype) {
    const Tensor tensor = memory_.tensor({count}, dtype, offset);
    offset += aligned(most, size_of(dtype));
    return tensor;
  };
  batch.input_ids = next(tokens, capacity_.max_tokens, DType::kI32);
  batch.positions = next(tokens, capacity_.max_tokens, DType::kI32);
  batch.sample_ids = next(tokens, capacity_.max_tokens, DType::kI64);
  batch.cu_seqlens = next(documents + 1, capacity_.max_documents + 1, DType::kI32);
  const int64_t most = std::max<int64_t>(capacity_.max_supervised, 1);
  batch.rows = next(supervised, most, DType::kI32);
  batch.targets = next(supervised, most, DType::kI32);
  batch.loss_weights = next(supervised, most, DType::kF32);
  return batch;
}

DeviceBatch DeviceBatchMemory::largest() const {
  DeviceBatch batch = views(capacity_.max_tokens, capacity_.max_documents, capacity_.max_supervised);
  batch.max_seqlen = capacity_.max_seqlen;
  return batch;
}

DeviceBatch DeviceBatchMemory::upload(Stream& stream, const MicroBatch& host) {
  DeviceBatch batch = views(host.tokens(), host.documents(), host.supervised());
  batch.max_seqlen = host.max_seqlen;
  stream.upload(batch.input_ids, host.input_ids);
  stream.upload(batch.positions, host.positions);
  stream.upload(batch.sample_ids, host.sample_ids);
  stream.upload(batch.cu_seqlens, host.cu_seqlens);
  stream.upload(batch.rows, host.rows);
  stream.upload(batch.targets, host.targets);
  stream.upload(batch.loss_weights, host.loss_weights);
  return batch;
}

}  // namespace hone
