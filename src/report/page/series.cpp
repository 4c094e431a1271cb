#include "report/page/series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

SeriesBucket joined(std::span<const SeriesBucket> buckets) {
  SeriesBucket all{buckets.front().first, buckets.back().last, 0, kNone, kNone, kNone};
  for (const SeriesBucket& bucket : buckets) {
    if (bucket.points == 0) continue;
    const bool begins = all.points == 0;
    all.least = begins ? bucket.least : std::min(all.least, bucket.least);
    all.most = begins ? bucket.most : std::max(all.most, bucket.most);
    all.points += bucket.points;
    const double share = static_cast<double>(bucket.points) / static_cast<double>(all.points);
    all.mean = begins ? bucket.mean : all.mean * (1 - share) + bucket.mean * share;
  }
  return all;
}

}  // namespace

bool Series::add(int64_t step, double value) {
  const bool finite = std::isfinite(value);
  const double kept = finite ? value : kNone;
  const SeriesBucket point{step, step, finite ? 1 : 0, kept, kept, kept};
  if (!first_) {
    first_ = point;
    return true;
  }
  if (step <= (last_ ? *last_ : *first_).last) return false;
  if (last_) add_inner(*last_);
  last_ = point;
  return true;
}

void Series::add_inner(const SeriesBucket& point) {
  if (!inner_.empty() && filled_ < width_) {
    const SeriesBucket both[] = {inner_.back(), point};
    inner_.back() = joined(both);
    ++filled_;
    return;
  }
  if (inner_.size() == kMostInner) {  // all are full
    for (size_t i = 0; i < kMostInner / 2; ++i) inner_[i] = joined(std::span(inner_).subspan(2 * i, 2));
    inner_.resize(kMostInner / 2);
    width_ *= 2;
  }
  inner_.push_back(point);
  filled_ = 1;
}

std::vector<SeriesBucket> Series::reduced(size_t most) const {
  HONE_ASSERT(most >= 3);
  std::vector<SeriesBucket> reduced;
  if (first_) reduced.push_back(*first_);
  const size_t count = std::min(most - 2, inner_.size());
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * inner_.size() / count, end = (i + 1) * inner_.size() / count;
    reduced.push_back(joined(std::span(inner_).subspan(begin, end - begin)));
  }
  if (last_) reduced.push_back(*last_);
  return reduced;
}

Json short_json(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  const double magnitude = std::floor(std::log10(std::abs(value)));
  if (magnitude < -300 || magnitude > 300) return value;
  if (magnitude >= 4) return std::round(value);
  // Divided by a power of ten that is exact, so that few digits are printed.
  const double scale = std::pow(10, 4 - magnitude);
  return std::round(value * scale) / scale;
}

Json series_json(const std::vector<SeriesBucket>& buckets) {
  Json x = Json::array(), y = Json::array(), low = Json::array(), high = Json::array();
  bool several = false;
  for (const SeriesBucket& bucket : buckets) {
    x.push_back(bucket.last);
    y.push_back(short_json(bucket.mean));
    low.push_back(short_json(bucket.least));
    high.push_back(short_json(bucket.most));
    several |= bucket.first != bucket.last;
  }
  Json json = {{"x", std::move(x)}, {"y", std::move(y)}};
  if (several) {
    json["lo"] = std::move(low);
    json["hi"] = std::move(high);
  }
  return json;
}

}  // namespace hone
