// A tracker of runs, as the trainer's reports see it: a run that is opened, gets params and metrics, and is closed.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/json_value.h"

namespace hone {

/// One value of one metric.
struct TrackerPoint {
  std::string key;
  double value = 0;
  int64_t timestamp = 0;  ///< milliseconds since 1970
  int64_t step = 0;
};

enum class TrackerStatus { kFinished, kFailed, kKilled };

class TrackerError : public std::runtime_error {
 public:
  enum class Kind {
    kRetry,    ///< no answer, or the server has problems: the same call may succeed later
    kRefused,  ///< the server rejects the data; other calls may succeed
    kFatal,    ///< no call will succeed: credentials, no such experiment or run
  };
  TrackerError(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// Calls block, for seconds if the tracker does not answer. They throw TrackerError. Names and values are accepted
/// ones.
class TrackerStore {
 public:
  virtual ~TrackerStore() = default;

  /// As users know it: "MLflow".
  virtual std::string name() const = 0;
  /// What the tracker takes as a metric's or param's name, and as a param's value.
  virtual std::string accepted_name(std::string_view name) const { return std::string(name); }
  virtual std::string accepted_value(std::string_view value) const { return std::string(value); }

  /// Creates the experiment if there is none with that name, and starts the run or continues run_id. Returns the run's
  /// id.
  virtual std::string open(int64_t start_time) = 0;
  /// At most kTrackerMostParams params or kTrackerMostPoints points; rejects a param that the run has with another
  /// value.
  virtual void log_params(std::span<const std::pair<std::string, std::string>> params) = 0;
  virtual void log_points(std::span<const TrackerPoint> points) = 0;
  virtual void close(TrackerStatus status, int64_t end_time) = 0;
  /// The location of the run, for the log.
  virtual std::string location() const = 0;
  /// Makes a waiting call of another thread return soon.
  virtual void cancel() {}
};

/// The limits of one call.
inline constexpr size_t kTrackerMostPoints = 1000, kTrackerMostParams = 100;

/// Milliseconds since 1970.
int64_t tracker_now();

// The run of a tracker that an output folder has, so that a resumed run continues it: an object with run_id and with
// what says where the run is.

/// Writes `path`. Ignores errors: a resumed run then starts a new one.
void write_tracker_run(const std::string& path, const JsonValue& run);
/// The run_id in `path`, if that is there and its other members equal those of `place`; else "".
std::string read_tracker_run(const std::string& path, const JsonValue& place);

}  // namespace hone
