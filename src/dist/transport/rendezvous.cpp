#include "dist/transport/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/base/error.h"
#include "core/base/program.h"
#include "dist/control/socket.h"
#include "dist/transport/cpu_communicator.h"
#include "dist/transport/gathering.h"
#include "dist/transport/nccl_communicator.h"
#include "dist/transport/transport.h"

namespace hone {
namespace {

constexpr double kTryConnectSeconds = 2;
constexpr double kAcceptedSeconds = 5;
/// How long a rank whose secret does not match keeps searching: the listener may be another run.
constexpr double kOtherSecretSeconds = 3.5;
constexpr auto kBetweenRendezvousTries = std::chrono::milliseconds(100);
constexpr const char* kOneSecret =
    "all ranks need the same secret: set HONE_RUN_SECRET (or HONE_RUN_SECRET_FILE) to the same on all of them, or use "
    "an output_dir that all hosts share";

bool is(const std::optional<Message>& message, ControlMessage type) {
  return message && message->type == static_cast<uint8_t>(type);
}

Socket listen_at_any(const LaunchEnvironment& environment) {
  std::string problem;
  for (const int port : environment.ports) {
    Socket listener = listen_at(environment.host, port, problem);
    if (listener.open()) return listener;
  }
  throw UserError(fmt::format("rank 0 cannot listen at any of the ports {} to {}: {}", environment.ports.front(),
                              environment.ports.back(), problem),
                  "MASTER_PORT", "set MASTER_PORT to a free port, the same on all ranks");
}

/// The deadline of a rank's wait, and the notices for the user.
class Patience {
 public:
  Patience(const ControlTimes& times, const RendezvousHooks& hooks)
      : times_(times), hooks_(hooks), end_(times.rendezvous), until_notice_(times.notice) {}

  double left() const { return end_.left(); }
  bool at_end() const { return end_.passed(); }
  void check() const {
    if (hooks_.check) hooks_.check();
  }
  template <class Text>
  void tell(Text what_is_missing) {
    if (told_ || !hooks_.notice || !until_notice_.passed()) return;
    told_ = true;
    hooks_.notice(fmt::format("{}; it waits up to {:.0f} s", what_is_missing(), times_.rendezvous));
  }
  void tell_of_other_secret(const std::string& address) {
    if (address.empty() || told_of_secret_ || !hooks_.notice) return;
    told_of_secret_ = true;
    hooks_.notice(fmt::format("rank 0 refused a connection from {}, which has another secret; if that is a rank: {}",
                              address, kOneSecret));
  }

 private:
  const ControlTimes& times_;
  const RendezvousHooks& hooks_;
  const Deadline end_, until_notice_;
  bool told_ = false, told_of_secret_ = false;
};

std::unique_ptr<ControlChannel> gather(const LaunchEnvironment& environment, const SecretPlaces& places,
                                       const ControlTimes& times, Patience patience) {
  Socket listener = listen_at_any(environment);
  // Written before rank 0 answers: a rank that finds rank 0 also finds the file.
  std::optional<SecretFile> file;
  if (places.stated.empty()) file.emplace(places, secret_file_name(environment.run, port_of(listener)));
  Gathering gathering(environment, std::move(listener),
                      {file ? file->secret() : places.stated, run_digest(environment.run, environment.ports.front())});
  const auto missing = [&] {
    const std::vector<int> ranks = gathering.missing();
    return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                       environment.world_size);
  };
  const std::string here = fmt::format("{}:{}", environment.host, gathering.port());
  try {
    while (!gathering.complete()) {
      patience.check();
      gathering.serve(patience.left());
      if (gathering.complete()) break;
      patience.tell_of_other_secret(gathering.other_secret_of());
      patience.tell([&] { return fmt::format("rank 0, at {}, has not heard from {}", here, missing()); });
      if (!patience.at_end()) continue;
      throw Error(ExitCode::kDeviceFailed,
                  fmt::format("{} did not connect to {} within {:.0f} s", missing(), here, times.rendezvous), "",
                  gathering.other_secret_of().empty()
                      ? "were they started? Can their hosts reach that address and port?"
                      : kOneSecret);
    }
  } catch (const Error& error) {
    gathering.tell_all(ControlMessage::kRefused, error.message());
    throw;
  }
  return gathering.welcome(times);
}

/// The search of another rank for rank 0.
class Search {
 public:
  Search(const LaunchEnvironment& environment, const SecretPlaces& places)
      : environment_(environment), places_(places) {}

  /// Tries each port once; returns whether rank 0 has accepted this rank.
  bool sweep() {
    bool without_secret = false;
    for (const int port : environment_.ports) {
      if (accepted_at(port)) return true;
      without_secret |= last_ == ProofAnswer::kOtherSecret || last_ == ProofAnswer::kNoSecret;
    }
    if (!without_secret) {
      since_other_secret_.reset();
    } else if (!since_other_secret_) {
      since_other_secret_.emplace(kOtherSecretSeconds);
    } else if (since_other_secret_->passed()) {
      throw UserError(fmt::format("rank {} has no secret in common with rank 0 at {}", environment_.rank, where()),
                      kSecretVariable, kOneSecret);
    }
    return false;
  }

  std::string where() const {
    return fmt::format("{}:{} to {}", environment_.host, environment_.ports.front(), environment_.ports.back());
  }
  const std::string& problem() const { return problem_; }
  const RunKey& key() const { return key_; }
  RankConnection& connection() { return connection_; }

 private:
  bool accepted_at(int port) {
    last_ = ProofAnswer::kNoAnswer;
    connection_.reader = MessageReader();
    connection_.socket = connect_to(environment_.host, port, kTryConnectSeconds, problem_);
    if (!connection_.socket.open()) return false;
    const Claims claims{version(), "control", key_.run, port, environment_.rank, environment_.world_size};
    last_ = prove(connection_.socket, connection_.reader, claims, [&] { return secret(port); });
    if (last_ != ProofAnswer::kProven) {
      problem_ = last_ == ProofAnswer::kNoAnswer
                     ? fmt::format("port {} belongs to another program or another run", port)
                 : last_ == ProofAnswer::kOtherSecret ? fmt::format("the listener at port {} has another secret", port)
                                                      : fmt::format("no secret was found for port {}", port);
      return false;
    }
    connection_.reader.set_longest(kLongestMessage);
    send_message(connection_.socket, static_cast<uint8_t>(ControlMessage::kFacts),
                 hello_text(own_facts(environment_.local_rank), process_));
    const std::optional<Message> answer = receive_message(connection_.socket, connection_.reader, kAcceptedSeconds);
    if (is(answer, ControlMessage::kRefused)) {
      throw UserError(answer->bytes, "ranks", "start all ranks the same way, with the same program");
    }
    problem_ = fmt::format("port {} belongs to another run", port);
    return is(answer, ControlMessage::kAccepted);
  }

  /// Reads the file at each call, since rank 0 replaces a file from a killed run.
  std::optional<std::string> secret(int port) {
    const std::optional<std::string> found =
        places_.stated.empty() ? read_secret_file(places_, secret_file_name(environment_.run, port)) : places_.stated;
    key_.secret = found.value_or("");
    return found;
  }

  const LaunchEnvironment& environment_;
  const SecretPlaces& places_;
  const std::string process_ = hexadecimal(random_bytes(16));
  RunKey key_{"", run_digest(environment_.run, environment_.ports.front())};
  RankConnection connection_;
  ProofAnswer last_ = ProofAnswer::kNoAnswer;
  std::string problem_;
  std::optional<Deadline> since_other_secret_;
};

/// Rank 0's message when all ranks have connected. It answers at its own deadline at the latest.
std::optional<Message> wait_for_welcome(RankConnection& connection, const ControlTimes& times,
                                        const Patience& patience) {
  const Deadline deadline(times.rendezvous + kAcceptedSeconds);
  while (!deadline.passed()) {
    patience.check();
    wait_to_read({connection.socket.descriptor()}, std::min(deadline.left(), Callers::kBetweenServings));
    const bool closed = connection.reader.read(connection.socket) == MessageReader::State::kClosed;
    if (std::optional<Message> message = connection.reader.next()) return message;
    if (closed) break;
  }
  return std::nullopt;
}

std::unique_ptr<ControlChannel> join(const LaunchEnvironment& environment, const SecretPlaces& places,
                                     const ControlTimes& times, Patience patience) {
  Search search(environment, places);
  while (!search.sweep()) {
    patience.check();
    if (patience.at_end()) {
      throw Error(ExitCode::kDeviceFailed,
                  fmt::format("rank {} did not find rank 0 at {} within {:.0f} s: {}", environment.rank, search.where(),
                              times.rendezvous, search.problem()),
                  "",
                  "was rank 0 started? MASTER_ADDR and MASTER_PORT (--master and --port of hone launch --hosts) say "
                  "where it listens");
    }
    patience.tell([&] {
      return fmt::format("rank {} cannot find rank 0 at {}: {}", environment.rank, search.where(), search.problem());
    });
    std::this_thread::sleep_for(kBetweenRendezvousTries);
  }
  RankConnection& connection = search.connection();
  const std::optional<Message> message = wait_for_welcome(connection, times, patience);
  if (is(message, ControlMessage::kRefused)) {
    throw Error(ExitCode::kDeviceFailed, "rank 0 does not start the run: " + message->bytes, "", "look at its log");
  }
  if (!is(message, ControlMessage::kWelcome)) {
    throw Error(ExitCode::kDeviceFailed, "rank 0 ended before all ranks had connected", environment.host,
                "look at its log");
  }
  std::optional<std::vector<RankFacts>> ranks =
      all_facts_of(message->bytes, static_cast<size_t>(environment.world_size));
  if (!ranks) {
    throw Error(ExitCode::kDeviceFailed, "rank 0 sent an invalid list of ranks", environment.host,
                "start all ranks with the same program");
  }
  for (RankFacts& facts : *ranks) {
    if (facts.address.empty()) facts.address = peer_address(connection.socket);
  }
  std::vector<RankConnection> connections;
  connections.push_back(std::move(connection));
  return std::make_unique<ControlChannel>(environment.rank, *std::move(ranks), std::move(connections), times,
                                          search.key());
}

}  // namespace

std::unique_ptr<ControlChannel> rendezvous(const LaunchEnvironment& environment, const SecretPlaces& secrets,
                                           const ControlTimes& times, const RendezvousHooks& hooks) {
  HONE_ASSERT(environment.world_size > 1);
  const Patience patience(times, hooks);
  return environment.rank == 0 ? gather(environment, secrets, times, patience)
                               : join(environment, secrets, times, patience);
}

std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control, Stream& stream) {
  HONE_ASSERT(control->size() > 1, "a communicator needs at least two ranks");
  if (stream.device().kind == DeviceKind::kCuda) {
    // NCCL's ports do not authenticate callers. The user's own choice stays.
    if (control->on_one_host()) ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
    return connect_nccl(std::move(control), stream);
  }
  std::unique_ptr<Transport> transport = control->connect_memory();
  return std::make_unique<CpuCommunicator>(std::move(control), std::move(transport));
}

}  // namespace hone
