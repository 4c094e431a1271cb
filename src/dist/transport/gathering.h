// Rank 0's side of the rendezvous: accepts connections at its port, and keeps those of ranks.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "dist/control/launch_environment.h"
#include "dist/control/run_secret.h"
#include "dist/control/socket.h"
#include "dist/transport/control_channel.h"

namespace hone {

// Connections to a port of a run. All are served concurrently; only callers that prove to know the run's secret are
// returned.

/// A connection of an authenticated caller.
struct ProvenCaller {
  Claims claims;
  Socket socket;
  MessageReader reader;
};

/// Limits what a stranger can use: one of `most` places (when all are taken, the oldest connection of the address with
/// the most connections is closed), kLongestProof bytes per message, and kProofSeconds. Other callers do not wait for
/// it.
class Callers {
 public:
  /// `expected`: see ListenersProof; the constructor sets its port.
  Callers(Socket listener, std::string secret, Claims expected, size_t most);

  /// Adds the descriptors to wait for before serve(). Call serve() at least every kBetweenServings seconds.
  void add_descriptors(std::vector<int>& descriptors) const;
  static constexpr double kBetweenServings = 0.2;

  /// Handles connections and messages without waiting; returns the callers that have authenticated since the last call.
  std::vector<ProvenCaller> serve();

  int port() const { return expected_.port; }
  /// The address of a caller that followed the protocol with another secret, or "".
  const std::string& other_secret_of() const { return other_secret_of_; }

 private:
  struct Caller {
    Caller(Socket from, ListenersProof start);
    Socket socket;
    std::string address;
    MessageReader reader;
    ListenersProof proof;
    Deadline deadline;
  };

  void let_in();
  void make_room();
  ListenersProof::State hear(Caller& caller);

  const Socket listener_;
  const std::string secret_;
  Claims expected_;
  const size_t most_;
  std::list<Caller> callers_;  // in the order of their connection
  std::string other_secret_of_;
};

class Gathering {
 public:
  Gathering(const LaunchEnvironment& environment, Socket listener, RunKey key);

  /// Handles connections and messages for at most `seconds`. Throws UserError if a rank cannot join the run, after
  /// telling it why.
  void serve(double seconds);

  bool complete() const { return connections_.size() + 1 == facts_.size(); }
  std::vector<int> missing() const;
  int port() const { return callers_.port(); }
  /// See Callers.
  const std::string& other_secret_of() const { return callers_.other_secret_of(); }

  void tell_all(ControlMessage type, const std::string& text) const;
  /// Sends kWelcome to all ranks and turns the connections into the run's channel.
  std::unique_ptr<ControlChannel> welcome(const ControlTimes& times);

 private:
  /// An authenticated rank that has not sent its facts.
  struct Arriving {
    ProvenCaller caller;
    Deadline deadline;
  };
  struct Joined {
    std::string process;  ///< random: distinguishes a reconnecting process from a second one with the same rank
    RankConnection connection;
  };

  bool arrived(Arriving& arriving);
  void join(ProvenCaller caller, const Message& message);
  void drop_who_left();
  std::string problem_with(const Claims& claims, const std::string& who) const;

  const LaunchEnvironment& environment_;
  const RunKey key_;
  Callers callers_;
  std::list<Arriving> arriving_;
  std::vector<RankFacts> facts_;
  std::list<Joined> connections_;
};

/// The message with which a rank joins: its facts, and its random process id.
std::string hello_text(const RankFacts& facts, const std::string& process);

}  // namespace hone
