// ValueReader: brings values that stay in the files of a checkpoint (kInFile) to the slots where ops read them.
#pragma once

#include "core/stream/stream.h"
#include "params/bucket.h"

namespace hone {

class ValueReader {
 public:
  virtual ~ValueReader() = default;

  /// Starts filling bucket.values after the work that is queued on the stream now; a read of the bucket waits for its
  /// arrival. The stream and the bucket must outlive that. What cannot be read is an error where it is waited for.
  virtual void bring(Stream& stream, const Bucket& bucket) = 0;
};

}  // namespace hone
