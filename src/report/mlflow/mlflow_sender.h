// MlflowSender: what a run tells MLflow, sent by a thread of its own. Whatever the server does, training goes on.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "report/metrics.h"
#include "report/mlflow/mlflow_store.h"

namespace hone {

struct MlflowPatience {
  size_t most_waiting = 100'000;               ///< points kept while nobody takes them; then the oldest are dropped
  std::chrono::milliseconds together{1000};    ///< points that come within so long travel in one call
  std::chrono::milliseconds first_retry{500};  ///< doubled from one failure to the next, up to
  std::chrono::milliseconds longest_retry{30'000};
  std::chrono::milliseconds at_end{20'000};  ///< how long end() waits at most for what is left to be sent
  /// The same where the server has not answered once in the whole run.
  std::chrono::milliseconds at_end_unreached{5'000};
};

/// What became of the points.
struct MlflowCounts {
  int64_t sent = 0;
  int64_t dropped = 0;  ///< the queue was full, or the run ended before they could be sent
  int64_t refused = 0;  ///< the server did not take them
  bool closed = false;  ///< the run's final status has arrived
};

struct MlflowNotice {
  std::string text;
  bool warning = false;
};

class MlflowSender {
 public:
  /// `options` gives the params to log; the store has the rest of it. Starts the thread.
  MlflowSender(std::unique_ptr<MlflowStore> store, const MlflowOptions& options, MlflowPatience patience = {});
  /// As end(kFailed), if end() has not been called.
  ~MlflowSender();
  MlflowSender(const MlflowSender&) = delete;
  MlflowSender& operator=(const MlflowSender&) = delete;

  /// Queues the metrics (all but `step`) as points of now. Never waits for anybody.
  void log(int64_t step, std::span<const Metric> metrics);

  /// The run's id, once it has been opened.
  std::string run_id() const;

  /// What there is to tell the user since the last call: that the run was opened, that the server does not answer, that
  /// it answers again.
  std::vector<MlflowNotice> take_notices();

  /// Sends what is left and the final status, for at most `at_end`; then leaves a call that still waits to itself.
  MlflowCounts end(MlflowStatus status);

  struct State;

 private:
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace hone
