// Device memory for micro-batches.
#pragma once

#include "core/memory/buffer.h"
#include "core/stream/stream.h"
#include "data/packing/micro_batch.h"
#include "nn/batch.h"

namespace hone {

/// Sizes of a micro-batch as seen by launches.
struct LaunchSizes {
  int64_t documents = 0, supervised = 0, max_seqlen = 0;
};

/// Rounds sizes up, so that many micro-batches of packed documents have the same sizes, as CUDA graphs need: most fill
/// the token capacity, but their numbers of documents and supervised tokens differ. Documents and max_seqlen are
/// rounded to powers of two, as in attention's plans; supervised tokens to multiples of 1/16 of the capacity, which
/// costs a fraction of a per cent of a step's work.
LaunchSizes rounded_sizes(const MicroBatch& batch, const BatchCapacity& capacity);

/// Device tensors of a run's capacity, reused by all micro-batches.
class DeviceBatchMemory {
 public:
  DeviceBatchMemory(Device device, const BatchCapacity& capacity);

  size_t bytes() const { return memory_.size(); }
  /// Queues the upload; the returned views are valid until the next upload. On a GPU they have rounded sizes.
  DeviceBatch upload(Stream& stream, const MicroBatch& batch);
  /// Views of full capacity for a dry pass.
  DeviceBatch largest() const;

 private:
  DeviceBatch views(int64_t tokens, int64_t documents, int64_t supervised) const;

  BatchCapacity capacity_;
  Buffer memory_;
};

}  // namespace hone
