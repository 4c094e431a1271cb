// Rank 0's side of the rendezvous: who has come.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "dist/callers.h"
#include "dist/control_channel.h"
#include "dist/launch_environment.h"

namespace hone {

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
