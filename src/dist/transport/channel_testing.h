// For tests: ranks that are threads and connect over TCP.
#pragma once

#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "dist/control/socket.h"
#include "dist/transport/rendezvous.h"

namespace hone {

/// A port that was free a moment ago. It depends on the process id, so that concurrent test processes use different
/// ports, and is below the system's ephemeral ports.
inline int free_port() {
  std::string problem;
  static int port = 20000 + static_cast<int>(::getpid() % 199) * 64;
  while (!listen_at("127.0.0.1", ++port, problem).open()) {
  }
  return port;
}

inline LaunchEnvironment environment_of(int rank, int world_size, int port) {
  return {"test", rank, world_size, rank, world_size, "127.0.0.1", {port}, "run", true};
}

inline SecretPlaces test_secret() { return {.stated = "a secret that the ranks of a test know"}; }

/// Calls body(channel) in one thread per environment. Returns the message of each rank's exception, or "".
template <class Body>
std::vector<std::string> run_channels(std::vector<LaunchEnvironment> environments, ControlTimes times, Body body) {
  std::vector<std::string> errors(environments.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < environments.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto channel = rendezvous(environments[i], test_secret(), times);
        body(*channel);
      } catch (const Error& error) {
        errors[i] = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<LaunchEnvironment> environments(int count) {
  const int port = free_port();
  std::vector<LaunchEnvironment> all;
  for (int rank = 0; rank < count; ++rank) all.push_back(environment_of(rank, count, port));
  return all;
}

}  // namespace hone
