// Rank 0's side of the rendezvous: who comes to its port, and who has come.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "dist/control_channel.h"
#include "dist/launch_environment.h"
#include "dist/run_secret.h"
#include "dist/socket.h"

namespace hone {

// Who comes to a port of a run: all are listened to together, and only who proves to know the run's secret is handed
// on.

/// A connection whose other side has proved what it claims.
struct ProvenCaller {
  Claims claims;
  Socket socket;
  MessageReader reader;
};

/// Nothing that a stranger does takes more than a place of `most` (who has had it longest, of the address that holds
/// most of them, makes room), kLongestProof bytes a message, and kProofSeconds; nobody waits for it.
class Callers {
 public:
  /// `expected`: see ListenersProof. Its port is filled in.
  Callers(Socket listener, std::string secret, Claims expected, size_t most);

  /// What serve() has to be called for: descriptors to wait for, and seconds after which to call it anyway.
  void add_descriptors(std::vector<int>& descriptors) const;
  static constexpr double kBetweenServings = 0.2;

  /// Takes what has come, without waiting; those who have proved themselves since.
  std::vector<ProvenCaller> serve();

  int port() const { return expected_.port; }
  /// Address of somebody who spoke as a rank does, but with another secret; "" if there was none.
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
  std::list<Caller> callers_;  // in the order in which they came
  std::string other_secret_of_;
};

class Gathering {
 public:
  Gathering(const LaunchEnvironment& environment, Socket listener, RunKey key);

  /// Waits for at most `seconds` and takes what has come meanwhile. Throws UserError if a rank cannot be part of the
  /// run; it has been told why.
  void serve(double seconds);

  bool complete() const { return connections_.size() + 1 == facts_.size(); }
  std::vector<int> missing() const;
  int port() const { return callers_.port(); }
  /// See Callers.
  const std::string& other_secret_of() const { return callers_.other_secret_of(); }

  void tell_all(ControlMessage type, const std::string& text) const;
  /// Tells all who is there, and becomes the run's channel.
  std::unique_ptr<ControlChannel> welcome(const ControlTimes& times);

 private:
  /// A rank that has proved itself, and whose facts are awaited.
  struct Arriving {
    ProvenCaller caller;
    Deadline deadline;
  };
  struct Joined {
    std::string process;  ///< random: tells a rank that comes again from another that is started as the same
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

/// What a rank says of itself to join: its facts, and which process it is.
std::string hello_text(const RankFacts& facts, const std::string& process);

}  // namespace hone
