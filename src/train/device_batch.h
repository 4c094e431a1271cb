// The device memory that micro-batches are uploaded into.
#pragma once

#include "core/buffer.h"
#include "core/stream.h"
#include "data/micro_batch.h"
#include "nn/batch.h"

namespace hone {

/// Sizes of a micro-batch as launches see them.
struct LaunchSizes {
  int64_t documents = 0, supervised = 0, max_seqlen = 0;
};

/// Rounded up, so that many micro-batches of packed documents have the same sizes: most fill the run's capacity of
/// tokens, but hardly two have as many documents and supervised tokens. Documents and the longest one's length go up to
/// powers of two, as attention's plans do; supervised tokens to multiples of a sixteenth of the capacity, a part of a
/// per cent of a step's work.
LaunchSizes rounded_sizes(const MicroBatch& batch, const BatchCapacity& capacity);

/// Device tensors of a run's capacity, filled by one micro-batch after another.
class DeviceBatchMemory {
 public:
  DeviceBatchMemory(Device device, const BatchCapacity& capacity);

  size_t bytes() const { return memory_.size(); }
  /// Queues the upload; the returned views are valid until the next one. On a GPU they have rounded sizes.
  DeviceBatch upload(Stream& stream, const MicroBatch& batch);
  /// Views of full capacity for a dry pass.
  DeviceBatch largest() const;

 private:
  DeviceBatch views(int64_t tokens, int64_t documents, int64_t supervised) const;

  BatchCapacity capacity_;
  Buffer memory_;
};

}  // namespace hone
