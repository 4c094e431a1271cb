#include "train/step/device_batch.h"

#include <algorithm>
#include <bit>

#include "core/base/aligned.h"
#include "core/memory/arena.h"

namespace hone {

namespace {

/// Supervised rows are padded to multiples of at least this number: a tile of the LM head's GEMMs.
constexpr int64_t kLeastStep = 128;

int64_t power_of_two_from(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

size_t aligned_elements(int64_t elements, size_t size) {
  return aligned(static_cast<size_t>(elements) * size, Arena::kAlignment);
}

}  // namespace

DeviceBatchMemory::DeviceBatchMemory(Device device, const BatchCapacity& capacity) : capacity_(capacity) {
  memory_ = Buffer(device, 2 * aligned_elements(capacity.max_tokens, 4) + aligned_elements(capacity.max_tokens, 8) +
                               aligned_elements(capacity.max_documents + 1, 4) +
                               3 * aligned_elements(std::max<int64_t>(capacity.max_supervised, 1), 4) +
                               aligned_elements(1, 4));
}

LaunchSizes rounded_sizes(const MicroBatch& batch, const BatchCapacity& capacity) {
  const int64_t step = std::max(kLeastStep, power_of_two_from(capacity.max_tokens) / 16);
  const int64_t supervised = (batch.supervised() + step - 1) / step * step;
  // Padding uses the last token, which is never supervised, so there are always fewer supervised tokens than tokens.
  return {.documents = std::min(power_of_two_from(batch.documents()), capacity.max_documents),
          .supervised = std::min(supervised, capacity.max_supervised),
          .max_seqlen = std::min(power_of_two_from(batch.max_seqlen), capacity.max_seqlen)};
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
    offset += aligned_elements(most, size_of(dtype));
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
  batch.present = next(1, 1, DType::kI32);
  return batch;
}

DeviceBatch DeviceBatchMemory::largest() const {
  DeviceBatch batch = views(capacity_.max_tokens, capacity_.max_documents, capacity_.max_supervised);
  batch.max_seqlen = capacity_.max_seqlen;
  return batch;
}

DeviceBatch DeviceBatchMemory::upload(Stream& stream, const MicroBatch& host) {
  LaunchSizes sizes{host.documents(), host.supervised(), host.max_seqlen};
  if (stream.device().kind == DeviceKind::kCuda) sizes = rounded_sizes(host, capacity_);
  DeviceBatch batch = views(host.tokens(), sizes.documents, sizes.supervised);
  batch.max_seqlen = sizes.max_seqlen;
  const auto padded = [](auto values, int64_t count, auto with) {
    values.resize(static_cast<size_t>(count), with);
    return values;
  };
  const auto last = static_cast<int32_t>(host.tokens() - 1);
  stream.upload(batch.input_ids, host.input_ids);
  stream.upload(batch.positions, host.positions);
  stream.upload(batch.sample_ids, host.sample_ids);
  stream.upload(batch.cu_seqlens, padded(host.cu_seqlens, sizes.documents + 1, last + 1));
  stream.upload(batch.rows, padded(host.rows, sizes.supervised, last));
  stream.upload(batch.targets, padded(host.targets, sizes.supervised, 0));
  stream.upload(batch.loss_weights, padded(host.loss_weights, sizes.supervised, 0.0f));
  stream.upload(batch.present, std::vector<int32_t>{static_cast<int32_t>(host.supervised())});
  return batch;
}

}  // namespace hone
