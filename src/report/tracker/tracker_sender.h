// TrackerSender: sends the metrics of a run to a tracker on a separate thread. Training continues whatever the tracker
// does.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "report/metrics.h"
#include "report/tracker/tracker_store.h"

namespace hone {

struct TrackerPatience {
  size_t most_waiting = 100'000;  ///< queued points while the server does not accept them; then the oldest are dropped
  std::chrono::milliseconds together{1000};    ///< points within this time are sent in one call
  std::chrono::milliseconds first_retry{500};  ///< doubled after each failure, up to
  std::chrono::milliseconds longest_retry{30'000};
  std::chrono::milliseconds at_end{20'000};  ///< how long end() waits at most to send the rest
  /// The same if the server has never answered during the run.
  std::chrono::milliseconds at_end_unreached{5'000};
};

/// Counts of points.
struct TrackerCounts {
  int64_t sent = 0;
  int64_t dropped = 0;  ///< the queue was full, or the run ended before they were sent
  int64_t refused = 0;  ///< the server rejected them
  bool closed = false;  ///< the run's final status has arrived
};

struct TrackerNotice {
  std::string text;
  bool warning = false;
};

class TrackerSender {
 public:
  using Params = std::vector<std::pair<std::string, std::string>>;

  /// Logs `params` once the run is open. Starts the thread.
  TrackerSender(std::unique_ptr<TrackerStore> store, const Params& params, TrackerPatience patience = {});
  /// Calls end(kFailed) if end() has not been called.
  ~TrackerSender();
  TrackerSender(const TrackerSender&) = delete;
  TrackerSender& operator=(const TrackerSender&) = delete;

  /// Queues the metrics (all but `step`) as points with the present time. Never waits.
  void log(int64_t step, std::span<const Metric> metrics);

  /// The tracker's, as users know it.
  std::string name() const;

  /// The run's id, after it has been opened.
  std::string run_id() const;

  /// Messages for the user since the last call: the run was opened, the server does not answer, it answers again.
  std::vector<TrackerNotice> take_notices();

  /// Sends the remaining points and the final status, for at most `at_end`; then abandons a call that still waits.
  TrackerCounts end(TrackerStatus status);

  struct State;

 private:
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace hone
