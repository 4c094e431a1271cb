// metrics.jsonl as series, and its summary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/text/json_fwd.h"
#include "report/page/series.h"

namespace hone {

/// Collects the rows of metrics.jsonl.
class MetricRecord {
 public:
  void add(const Json& row);

  /// The fields of a record's summary (report/page/run_record.h) that are known.
  Json summary() const;
  /// The series of the metrics that the page shows, in its order, each with at most so many buckets.
  Json series(size_t buckets) const;

  int64_t lines() const { return lines_; }
  /// Lines with a value of a step that came before, which is left out.
  int64_t late() const { return late_; }
  int64_t last_step() const { return last_step_; }

 private:
  void summarise(const std::string& name, int64_t step, double value);
  bool shown(const std::string& name);

  std::map<std::string, Series> series_;
  size_t datasets_ = 0;
  int64_t lines_ = 0, late_ = 0, last_step_ = 0;
  std::optional<double> loss_;
  std::optional<std::pair<int64_t, double>> best_;  // step and evaluation loss
  std::optional<double> left_;                      // seconds
  double memory_ = 0;
};

}  // namespace hone
