// The device memory that micro-batches are uploaded into.
#pragma once

#include "core/buffer.h"
#include "core/stream.h"
#include "data/micro_batch.h"
#include "nn/batch.h"

namespace hone {

/// Device tensors of a run's capacity, filled by one micro-batch after another.
class DeviceBatchMemory {
 public:
  DeviceBatchMemory(Device device, const BatchCapacity& capacity);

  size_t bytes() const { return memory_.size(); }
  /// Queues the upload; the returned views are valid until the next one.
  DeviceBatch upload(Stream& stream, const MicroBatch& batch);
  /// Views of full capacity for a dry pass.
  DeviceBatch largest() const;

 private:
  DeviceBatch views(int64_t tokens, int64_t documents, int64_t supervised) const;

  BatchCapacity capacity_;
  Buffer memory_;
};

}  // namespace hone
