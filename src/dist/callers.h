// Who comes to a port of a run: all are listened to together, and only who proves to know the run's secret is handed
// on.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "dist/deadline.h"
#include "dist/proof.h"
#include "dist/socket.h"

namespace hone {

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

}  // namespace hone
