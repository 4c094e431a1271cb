// A series of a metric over steps, reduced to what a chart can show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// Points of neighbouring steps as one.
struct SeriesBucket {
  int64_t first = 0, last = 0;  ///< steps
  int64_t points = 0;           ///< with a finite value
  double least = 0, most = 0;   ///< among the finite values; NaN: there is none
  double mean = 0;              ///< mean of the finite values
};

/// Collects a series of any length in bounded memory.
class Series {
 public:
  /// A value that is not finite makes a gap. Steps ascend: returns false for one that is not after the last, which is
  /// left out.
  bool add(int64_t step, double value);

  bool empty() const { return !first_; }

  /// At most `most` buckets (3 or more) of about equal numbers of points. The first and the last point are buckets of
  /// their own, so that the ends of a chart are exact.
  std::vector<SeriesBucket> reduced(size_t most) const;

 private:
  void add_inner(const SeriesBucket& point);

  static constexpr size_t kMostInner = size_t{1} << 14;

  std::optional<SeriesBucket> first_, last_;  // the ends
  std::vector<SeriesBucket> inner_;           // those between them
  int64_t width_ = 1, filled_ = 0;            // points of a full bucket, and of the last one in `inner_`
};

/// {"x": last steps, "y": means}, and where a bucket has several points "lo", "hi"; numbers with five significant
/// digits, null for NaN.
Json series_json(const std::vector<SeriesBucket>& buckets);

/// The number with five significant digits, or null.
Json short_json(double value);

}  // namespace hone
