// ControlChannel: Control over TCP. Every rank has a connection to rank 0, which forwards messages to all ranks. A
// thread of each rank sends heartbeats and receives; rank 0 also detects lost ranks and ranks that hang.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "dist/control/control.h"
#include "dist/control/control_messages.h"
#include "dist/control/socket.h"

namespace hone {

/// Time limits in seconds.
struct ControlTimes {
  double rendezvous = 600;  ///< until all ranks have connected
  double notice = 10;       ///< until the missing ranks are reported
  double heartbeat = 1;
  double silence = 18;  ///< without a heartbeat, after which a rank is lost; all know it within 20
  double hang = 1800;   ///< in one collective, after which a rank that has not reached it is lost
};

/// A connection to another rank.
struct RankConnection {
  int rank = 0;
  Socket socket;
  MessageReader reader;
};

/// The secret that all ranks of a run share. They use it to authenticate at data ports, too (run_secret.h).
struct RunKey {
  std::string secret = {};
  std::string run = {};  ///< run_digest
};

class ControlChannel : public Control {
 public:
  /// `connections`: on rank 0 one to each other rank, on other ranks the one to rank 0. `ranks`: the facts of all
  /// ranks.
  ControlChannel(int rank, std::vector<RankFacts> ranks, std::vector<RankConnection> connections, ControlTimes times,
                 RunKey key = {});
  /// Sends kGoodbye: the other ranks do not count this rank as lost.
  ~ControlChannel() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::vector<RankFacts>& ranks() const { return ranks_; }
  const RunKey& key() const { return key_; }
  /// Whether all ranks reach each other over the loopback.
  bool on_one_host() const;
  /// The number of ranks of this host that may run on the same cores, including this rank.
  int ranks_on_own_cores() const;
  /// The number of ranks of each host, if it is the same for all and a host's ranks are consecutive; else 0.
  int ranks_of_host() const;
  /// "rank 2 (node7, pid 123)"
  std::string name_of(int rank) const;
  /// Changes ControlTimes::hang. Only rank 0's value has an effect.
  void set_hang(double seconds) { hang_ = seconds; }

  std::vector<std::string> exchange(std::string_view mine) override;
  void at_step(int64_t step) override { step_ = step; }
  int64_t begin_collective(const char* name) override;
  void end_collectives(int64_t count) override;
  /// Through shared memory where that is possible, else over TCP.
  std::unique_ptr<Transport> connect_memory() override;
  void fail(const std::string& reason) override;
  void check() override;
  std::vector<int> lost() const override;
  void on_end(std::function<void()> callback) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Text {
    std::string bytes;
    Clock::time_point since;
  };
  struct Peer {
    explicit Peer(RankConnection from) : connection(std::move(from)), heard(Clock::now()) {}
    RankConnection connection;
    std::mutex sending;
    Clock::time_point heard;
    RankProgress progress;
    std::deque<Text> texts;  // received for exchange(), not yet used
    bool left = false;       // has sent kGoodbye, or is lost
  };
  void serve();
  void listen(Peer& peer);
  /// Handles a message; false if it is invalid or not for this rank.
  bool take(Peer& peer, const Message& message);
  bool take_text(Peer& peer, const Message& message);
  void send_to(Peer& peer, ControlMessage type, std::string_view bytes);
  void send_heartbeats();
  bool has_left(const Peer& peer) const;
  void leave(Peer& peer);
  void find_silent();
  void find_hanging();
  void find_missing_texts();
  bool texts_are_there() const;
  std::vector<std::string> exchange_at_rank_0(std::string_view mine);
  std::vector<std::string> exchange_through_rank_0(std::string_view mine);
  /// Ends the group. `own_failure`: the text for rank 0 if this rank has failed. `gone`: a peer that is marked as left
  /// before waiting threads wake up, so they throw the reason.
  void end(GroupEnd end, std::string_view own_failure = {}, Peer* gone = nullptr);
  void throw_if_ended() const;
  RankProgress own_progress() const;
  std::string lost_text(const Peer& peer, const std::string& why) const;

  const int rank_;
  const std::vector<RankFacts> ranks_;
  const ControlTimes times_;
  const RunKey key_;
  std::atomic<double> hang_;
  std::vector<std::unique_ptr<Peer>> peers_;

  std::atomic<int64_t> step_{0}, collectives_{0}, ended_collectives_{0};
  std::atomic<const char*> collective_{""};  // the last one begun
  std::atomic<Clock::rep> collective_since_{0};

  mutable std::mutex mutex_;  // protects the next three members, and the peers' progress, texts and left
  std::condition_variable changed_;
  std::optional<GroupEnd> ended_;
  std::vector<std::function<void()>> callbacks_;
  std::optional<Clock::time_point> own_text_since_;  // set while rank 0 waits for the texts of the other ranks
  std::atomic<bool> stopping_{false};
  Socket wake_;  // an eventfd that wakes serve()
  std::thread server_;
};

}  // namespace hone
