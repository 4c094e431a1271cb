#include "train/run/data_wait.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hone {

DataWait::~DataWait() {
  if (stream_.device().kind == DeviceKind::kCpu) stream_.settle();
}

void DataWait::begin() {
  clock_.clear();
  clock_.mark();
  begin_ = from_ = to_ = WallClock::now();
}

double DataWait::take() {
  const std::vector<double> marks = clock_.seconds();
  const auto after_begin = [&](WallClock::time_point time) {
    return std::chrono::duration<double>(time - begin_).count();
  };
  // Without a mark after the work nothing was prepared beside it.
  const double finished = marks.back(), from = after_begin(from_), to = after_begin(to_);
  return std::exchange(seconds_, 0) + std::max(0.0, to - std::max(finished, from));
}

}  // namespace hone
