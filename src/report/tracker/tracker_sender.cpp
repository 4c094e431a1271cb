#include "report/tracker/tracker_sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/quiet_thread.h"

namespace hone {

using Clock = std::chrono::steady_clock;

struct TrackerSender::State {
  using Params = TrackerSender::Params;

  State(std::unique_ptr<TrackerStore> to, Params run_params, TrackerPatience limits)
      : store(std::move(to)), params(std::move(run_params)), patience(limits) {}

  const std::unique_ptr<TrackerStore> store;
  const Params params;
  const TrackerPatience patience;

  std::mutex mutex;
  std::condition_variable wake, done_changed;
  // Guarded by the mutex:
  std::deque<TrackerPoint> waiting;
  size_t in_flight = 0;  // points taken out of `waiting` whose call has not returned
  TrackerCounts counts;
  std::vector<TrackerNotice> notices;
  std::string run_id;
  bool off = false;     // no call will succeed: points are only counted
  bool ending = false;  // end() has been called; `status` and `deadline` are final
  bool done = false;    // the thread has finished
  TrackerStatus status = TrackerStatus::kFailed;
  Clock::time_point deadline;

  bool given_up() const { return off || (ending && Clock::now() >= deadline); }
};

namespace {

/// The thread: opens the run, sends points as they come, closes it.
class Worker {
 public:
  explicit Worker(TrackerSender::State& state) : s_(state) {}

  void run() {
    open();
    send_params(s_.params);
    while (take_batch()) send_points(batch_);
    close();
    const std::lock_guard lock(s_.mutex);
    s_.done = true;
    s_.done_changed.notify_all();
  }

 private:
  using Kind = TrackerError::Kind;
  enum class Outcome { kDone, kRefused, kGivenUp };

  /// Repeats a call while the server has problems, with back-off.
  Outcome attempt(const std::function<void()>& call) {
    auto pause = s_.patience.first_retry;
    for (bool failed = false;; failed = true) {
      try {
        if (given_up()) return Outcome::kGivenUp;
        call();
        if (failed) notice({s_.store->name() + " answers again"});
        return Outcome::kDone;
      } catch (const TrackerError& error) {
        if (error.kind() == Kind::kRefused) return refused(error);
        if (error.kind() == Kind::kFatal) return switch_off(error.what());
        if (!failed)
          notice({fmt::format("{}: {}; retrying while training continues", s_.store->name(), error.what()), true});
      } catch (const std::exception& error) {
        return switch_off(error.what());
      }
      std::unique_lock lock(s_.mutex);
      const bool was_ending = s_.ending;
      s_.wake.wait_for(lock, s_.ending ? s_.patience.first_retry : pause, [&] { return s_.ending != was_ending; });
      pause = std::min(2 * pause, s_.patience.longest_retry);
    }
  }

  void open() {
    const int64_t start_time = tracker_now();
    std::string id;
    if (attempt([&] { id = s_.store->open(start_time); }) == Outcome::kRefused)
      switch_off("the server rejected the run");
    if (id.empty()) return;
    const std::lock_guard lock(s_.mutex);
    s_.run_id = id;
    s_.notices.push_back({s_.store->name() + ": " + s_.store->location()});
  }

  /// If the params are rejected, sends each half, down to the single invalid one.
  void send_params(std::span<const std::pair<std::string, std::string>> params) {
    if (params.size() > kTrackerMostParams) {
      send_params(params.first(kTrackerMostParams));
      return send_params(params.subspan(kTrackerMostParams));
    }
    if (params.empty()) return;
    if (attempt([&] { s_.store->log_params(params); }) != Outcome::kRefused || params.size() == 1) return;
    send_params(params.first(params.size() / 2));
    send_params(params.subspan(params.size() / 2));
  }

  void send_points(std::span<const TrackerPoint> points) {
    const Outcome outcome = attempt([&] { s_.store->log_points(points); });
    if (outcome == Outcome::kRefused && points.size() > 1) {
      send_points(points.first(points.size() / 2));
      return send_points(points.subspan(points.size() / 2));
    }
    const std::lock_guard lock(s_.mutex);
    const auto count = static_cast<int64_t>(points.size());
    s_.in_flight -= points.size();
    (outcome == Outcome::kDone      ? s_.counts.sent
     : outcome == Outcome::kRefused ? s_.counts.refused
                                    : s_.counts.dropped) += count;
  }

  /// Takes the next points, several if they are close in time; returns false if there will be none.
  bool take_batch() {
    std::unique_lock lock(s_.mutex);
    s_.wake.wait(lock, [&] { return !s_.waiting.empty() || s_.ending; });
    s_.wake.wait_for(lock, s_.patience.together,
                     [&] { return s_.waiting.size() >= kTrackerMostPoints || s_.ending || s_.off; });
    const size_t count = std::min(s_.waiting.size(), kTrackerMostPoints);
    const auto end = s_.waiting.begin() + static_cast<std::ptrdiff_t>(count);
    batch_.assign(s_.waiting.begin(), end);
    s_.waiting.erase(s_.waiting.begin(), end);
    s_.in_flight = count;
    return count > 0 || !s_.ending;
  }

  void close() {
    if (run_id().empty()) return;
    const int64_t end_time = tracker_now();
    const bool closed = attempt([&] { s_.store->close(s_.status, end_time); }) == Outcome::kDone;
    const std::lock_guard lock(s_.mutex);
    s_.counts.closed = closed;
  }

  Outcome refused(const TrackerError& error) {
    if (!std::exchange(told_refusal_, true))
      notice({fmt::format("{} rejects some values: {}", s_.store->name(), error.what()), true});
    return Outcome::kRefused;
  }
  Outcome switch_off(const std::string& why) {
    const std::lock_guard lock(s_.mutex);
    s_.off = true;
    s_.notices.push_back({fmt::format("{} is switched off, training continues: {}", s_.store->name(), why), true});
    return Outcome::kGivenUp;
  }
  void notice(TrackerNotice line) {
    const std::lock_guard lock(s_.mutex);
    s_.notices.push_back(std::move(line));
  }
  bool given_up() {
    const std::lock_guard lock(s_.mutex);
    return s_.given_up();
  }
  std::string run_id() {
    const std::lock_guard lock(s_.mutex);
    return s_.run_id;
  }

  TrackerSender::State& s_;
  std::vector<TrackerPoint> batch_;
  bool told_refusal_ = false;
};

}  // namespace

TrackerSender::TrackerSender(std::unique_ptr<TrackerStore> store, const Params& params, TrackerPatience patience) {
  Params accepted;
  for (const auto& [name, value] : params) {
    accepted.emplace_back(store->accepted_name(name), store->accepted_value(value));
  }
  state_ = std::make_shared<State>(std::move(store), std::move(accepted), patience);
  thread_ = quiet_thread([state = state_] { Worker(*state).run(); });
}

TrackerSender::~TrackerSender() {
  if (thread_.joinable()) end(TrackerStatus::kFailed);
}

void TrackerSender::log(int64_t step, std::span<const Metric> metrics) {
  const int64_t now = tracker_now();
  const std::lock_guard lock(state_->mutex);
  for (const Metric& metric : metrics) {
    if (metric.name == "step") continue;
    if (state_->off) {
      ++state_->counts.dropped;
      continue;
    }
    state_->waiting.push_back({state_->store->accepted_name(metric.name), metric.value, now, step});
    if (state_->waiting.size() > state_->patience.most_waiting) {
      state_->waiting.pop_front();
      ++state_->counts.dropped;
    }
  }
  state_->wake.notify_all();
}

std::string TrackerSender::name() const { return state_->store->name(); }

std::string TrackerSender::run_id() const {
  const std::lock_guard lock(state_->mutex);
  return state_->run_id;
}

std::vector<TrackerNotice> TrackerSender::take_notices() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->notices, {});
}

TrackerCounts TrackerSender::end(TrackerStatus status) {
  // After the deadline the waiting call is cancelled. A call that cannot be cancelled (a name server that does not
  // answer) is abandoned with its shared state.
  constexpr std::chrono::milliseconds kAfterCancel{500};
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->status = status;
  const TrackerPatience& patience = state_->patience;
  state_->deadline =
      Clock::now() + (state_->run_id.empty() ? std::min(patience.at_end, patience.at_end_unreached) : patience.at_end);
  state_->wake.notify_all();
  const auto done = [&] { return state_->done; };
  if (!state_->done_changed.wait_until(lock, state_->deadline, done)) {
    lock.unlock();
    state_->store->cancel();
    lock.lock();
    state_->done_changed.wait_for(lock, kAfterCancel, done);
  }
  TrackerCounts counts = state_->counts;
  counts.dropped += static_cast<int64_t>(state_->waiting.size() + state_->in_flight);
  const bool joins = state_->done;
  lock.unlock();
  if (joins) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return counts;
}

}  // namespace hone
