#include "data/readers/parquet/bit_runs.h"

#include <algorithm>

namespace hone::parquet {

BitRuns::BitRuns(Bytes bytes, int width) : in_(bytes), width_(width) {
  if (width < 0 || width > 32) fault("a page has integers of {} bits", width);
}

void BitRuns::next_run() {
  const uint64_t head = in_.varint();
  packed_ = (head & 1) != 0;
  const uint64_t count = head >> 1;
  if (packed_) {  // groups of eight; some writers cut off what the last one does not need
    if (width_ > 0 && count > in_.left()) fault("the runs of a page end too early");
    const uint64_t bytes = std::min<uint64_t>(count * static_cast<uint64_t>(width_), in_.left());
    left_ = width_ == 0 ? count * 8 : std::min(count * 8, bytes * 8 / static_cast<uint64_t>(width_));
    bits_ = PackedBits(in_.take(bytes), width_);
  } else {
    value_ = 0;
    const Bytes bytes = in_.take(static_cast<uint64_t>(width_ + 7) / 8);
    std::memcpy(&value_, bytes.data(), bytes.size());
    left_ = count;
  }
}

}  // namespace hone::parquet
