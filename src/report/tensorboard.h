// TensorBoard event files, written without a protobuf library.
//
// A file is a sequence of TFRecords: u64 length, u32 masked_crc32c(length), bytes, u32 masked_crc32c(bytes), all
// little endian. Each record is a protobuf message Event {1: double wall_time, 2: int64 step, 3: string file_version,
// 5: Summary {1: repeated Value {1: string tag, 2: float simple_value}}, 7: SessionLog {1: status}}.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "report/metrics.h"
#include "report/metrics_file.h"

namespace hone {

/// One event file. Records reach the operating system before the calls return. Throws std::system_error (Reporter
/// converts it to one warning).
class TensorBoardWriter {
 public:
  /// Creates `folder`/events.out.tfevents.<unix seconds>.<host>; adds a number at the end if the name is taken.
  explicit TensorBoardWriter(const std::string& folder);

  /// Tells readers to discard points at or after `step`, which an earlier file of a resumed run may contain.
  void forget_from(int64_t step);

  /// Writes every metric except `step` as a scalar of that step.
  void write(int64_t step, std::span<const Metric> metrics);

  const std::string& path() const { return file_.path(); }

 private:
  void write_event(int64_t step, std::string_view payload);

  AppendFile file_;
};

}  // namespace hone
