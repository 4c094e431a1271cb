#include "dist/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "core/error.h"
#include "core/untrusted_json.h"
#include "dist/deadline.h"
#include "dist/local_process.h"

namespace hone {

namespace {

/// Who connects says who it is at once; what a port scanner sends is not waited for.
constexpr double kHelloSeconds = 5;
constexpr double kConnectSeconds = 2;
constexpr uint32_t kLongestHello = 64 << 10;
constexpr const char* kLoopback = "127.0.0.1";
constexpr auto kBetweenTries = std::chrono::milliseconds(100);

Json facts_json(const RankFacts& facts) {
  return {{"host", facts.host},
          {"pid", facts.pid},
          {"local_rank", facts.local_rank},
          {"cores", facts.cores},
          {"address", facts.address}};
}

RankFacts facts_of(const Json& json) {
  return {json.at("host"), json.at("pid"), json.at("local_rank"), json.value("cores", ""), json.value("address", "")};
}

RankFacts own_facts(const LaunchEnvironment& environment) {
  return {host_name(), ::getpid(), environment.local_rank, own_cores(), ""};
}

/// Ranks beside rank 0 came to it over the loopback: others reach them where they reach rank 0.
void complete_addresses(std::vector<RankFacts>& ranks, const std::string& of_rank_0) {
  for (RankFacts& facts : ranks) {
    if (facts.address.empty()) facts.address = of_rank_0;
  }
}

std::string hello_of(const LaunchEnvironment& environment) {
  Json hello = facts_json(own_facts(environment));
  hello["hone"] = HONE_VERSION;
  hello["run"] = environment.run;
  hello["port"] = environment.ports.front();
  hello["rank"] = environment.rank;
  hello["world_size"] = environment.world_size;
  return hello.dump();
}

bool say(const Socket& socket, ControlMessage type, std::string_view text = {}) {
  return send_message(socket, static_cast<uint8_t>(type), text);
}

bool is(const std::optional<Message>& message, ControlMessage type) {
  return message && message->type == static_cast<uint8_t>(type);
}

/// Rank 0: who has come.
class Gathering {
 public:
  explicit Gathering(const LaunchEnvironment& environment)
      : environment_(environment), facts_(static_cast<size_t>(environment.world_size)) {
    facts_[0] = own_facts(environment);
  }

  bool complete() const { return connections_.size() + 1 == facts_.size(); }

  /// Takes a connection if a rank of this run is at its other end. Throws UserError if it cannot be part of the run.
  void take(Socket socket) {
    RankConnection connection;
    connection.reader.set_longest(kLongestHello);
    const std::optional<Message> message = receive_message(socket, connection.reader, kHelloSeconds);
    if (!is(message, ControlMessage::kHello)) return;
    const Json hello = parse_json(message->bytes);
    if (!hello.is_object() || !hello.contains("hone") || !is_of_this_run(hello)) return;
    connection.rank = hello.at("rank");
    RankFacts facts = facts_of(hello);
    facts.address = peer_address(socket);
    if (is_loopback(facts.address)) facts.address.clear();
    const std::string problem = problem_with(hello, facts, connection.rank);
    connection.socket = std::move(socket);
    if (!problem.empty()) {
      say(connection.socket, ControlMessage::kRefused, problem);
      throw UserError(problem, "ranks", "start all ranks the same way, with the same program");
    }
    say(connection.socket, ControlMessage::kAccepted);
    facts_[static_cast<size_t>(connection.rank)] = facts;
    connections_.push_back(std::move(connection));
  }

  void tell_all(ControlMessage type, const std::string& text) const {
    for (const RankConnection& connection : connections_) say(connection.socket, type, text);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < environment_.world_size; ++rank) {
      if (!has(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  std::string welcome() {
    // Where all are on one host nobody listens to the network.
    const bool one_host =
        std::all_of(facts_.begin(), facts_.end(), [](const auto& rank) { return rank.address.empty(); });
    if (one_host) complete_addresses(facts_, kLoopback);
    Json ranks = Json::array();
    for (const RankFacts& facts : facts_) ranks.push_back(facts_json(facts));
    return ranks.dump();
  }

  std::unique_ptr<ControlChannel> channel(const ControlTimes& times) {
    complete_addresses(facts_, kLoopback);
    return std::make_unique<ControlChannel>(0, facts_, std::move(connections_), times);
  }

 private:
  bool has(int rank) const {
    return std::any_of(connections_.begin(), connections_.end(),
                       [&](const RankConnection& connection) { return connection.rank == rank; });
  }

  /// Runs that no launcher tells apart differ in the port that they were given: who did not get it listens behind it,
  /// where others' ranks look for theirs.
  bool is_of_this_run(const Json& hello) const {
    return hello.value("run", "") == environment_.run && hello.value("port", 0) == environment_.ports.front();
  }

  std::string problem_with(const Json& hello, const RankFacts& facts, int rank) const {
    const std::string who = fmt::format("rank {} ({}, pid {})", rank, facts.host, facts.pid);
    const int world_size = hello.at("world_size");
    const std::string version = hello.at("hone");
    if (world_size != environment_.world_size) {
      return fmt::format("{} was started as one of {} ranks, rank 0 as one of {}", who, world_size,
                         environment_.world_size);
    }
    if (version != HONE_VERSION) return fmt::format("{} is Hone {}, rank 0 is Hone {}", who, version, HONE_VERSION);
    if (rank < 1 || rank >= world_size || has(rank)) {
      return fmt::format("{} is there twice: another process has that rank", who);
    }
    return "";
  }

  const LaunchEnvironment& environment_;
  std::vector<RankFacts> facts_;
  std::vector<RankConnection> connections_;
};

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

using Notice = std::function<void(const std::string&)>;

/// How long the others are waited for, and that the user hears of it.
class Patience {
 public:
  Patience(const ControlTimes& times, const Notice& notice)
      : times_(times), notice_(notice), end_(times.rendezvous), until_notice_(times.notice) {}

  double left() const { return end_.left(); }
  bool at_end() const { return end_.passed(); }
  template <class Text>
  void tell(Text what_is_missing) {
    if (told_ || !notice_ || !until_notice_.passed()) return;
    told_ = true;
    notice_(fmt::format("{}; it waits up to {:.0f} s", what_is_missing(), times_.rendezvous));
  }

 private:
  const ControlTimes& times_;
  const Notice& notice_;
  const Deadline end_, until_notice_;
  bool told_ = false;
};

std::unique_ptr<ControlChannel> gather(const LaunchEnvironment& environment, const ControlTimes& times,
                                       Patience patience) {
  const Socket listener = listen_at_any(environment);
  Gathering gathering(environment);
  const auto missing = [&] {
    const std::vector<int> ranks = gathering.missing();
    return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                       environment.world_size);
  };
  const std::string here = fmt::format("{}:{}", environment.host, port_of(listener));
  try {
    while (!gathering.complete()) {
      Socket socket = accept_from(listener, std::min(1.0, patience.left()));
      if (socket.open()) gathering.take(std::move(socket));
      if (gathering.complete()) break;
      patience.tell([&] { return fmt::format("rank 0, at {}, has not heard from {}", here, missing()); });
      if (!patience.at_end()) continue;
      throw Error(ExitCode::kDeviceFailed,
                  fmt::format("{} did not come to {} within {:.0f} s", missing(), here, times.rendezvous), "",
                  "were they started? Can their hosts reach that address and port?");
    }
  } catch (const Error& error) {
    gathering.tell_all(ControlMessage::kRefused, error.message());
    throw;
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("what a rank says cannot be read: {}", error.what()), "ranks",
                    "start all ranks with the same program");
  }
  gathering.tell_all(ControlMessage::kWelcome, gathering.welcome());
  return gathering.channel(times);
}

/// Rank 0's answer to who this is; not open if there is another program, or nobody, at that port.
Socket greet(const LaunchEnvironment& environment, int port, MessageReader& reader, std::string& problem) {
  Socket socket = connect_to(environment.host, port, kConnectSeconds, problem);
  if (!socket.open()) return {};
  say(socket, ControlMessage::kHello, hello_of(environment));
  const std::optional<Message> answer = receive_message(socket, reader, kHelloSeconds);
  if (is(answer, ControlMessage::kRefused)) {
    throw UserError(answer->bytes, "ranks", "start all ranks the same way, with the same program");
  }
  if (is(answer, ControlMessage::kAccepted)) return socket;
  problem = fmt::format("port {} is another program's, or another run's", port);
  return {};
}

std::unique_ptr<ControlChannel> join(const LaunchEnvironment& environment, const ControlTimes& times,
                                     Patience patience) {
  RankConnection connection;
  std::string problem;
  const std::string where =
      fmt::format("{}:{} to {}", environment.host, environment.ports.front(), environment.ports.back());
  while (!connection.socket.open() && !patience.at_end()) {
    for (const int port : environment.ports) {
      connection.reader = MessageReader();
      connection.reader.set_longest(kLongestMessage);
      connection.socket = greet(environment, port, connection.reader, problem);
      if (connection.socket.open()) break;
    }
    if (connection.socket.open()) break;
    patience.tell([&] { return fmt::format("rank {} finds no rank 0 at {}: {}", environment.rank, where, problem); });
    std::this_thread::sleep_for(kBetweenTries);
  }
  if (!connection.socket.open()) {
    throw Error(
        ExitCode::kDeviceFailed,
        fmt::format("rank {} found no rank 0 at {} within {:.0f} s: {}", environment.rank, where, times.rendezvous,
                    problem),
        "",
        "was rank 0 started? MASTER_ADDR and MASTER_PORT (--master and --port of hone launch --hosts) say where it "
        "listens");
  }
  // Rank 0 answers at its own deadline at the latest.
  const std::optional<Message> message =
      receive_message(connection.socket, connection.reader, times.rendezvous + kHelloSeconds);
  if (is(message, ControlMessage::kRefused)) {
    throw Error(ExitCode::kDeviceFailed, "rank 0 does not begin: " + message->bytes, "", "look at its log");
  }
  if (!is(message, ControlMessage::kWelcome)) {
    throw Error(ExitCode::kDeviceFailed, "rank 0 ended before all ranks had come", environment.host, "look at its log");
  }
  std::vector<RankFacts> ranks;
  for (const Json& entry : parse_json(message->bytes)) ranks.push_back(facts_of(entry));
  complete_addresses(ranks, peer_address(connection.socket));
  HONE_ASSERT(ranks.size() == static_cast<size_t>(environment.world_size));
  std::vector<RankConnection> connections;
  connections.push_back(std::move(connection));
  return std::make_unique<ControlChannel>(environment.rank, std::move(ranks), std::move(connections), times);
}

}  // namespace

std::unique_ptr<ControlChannel> rendezvous(const LaunchEnvironment& environment, const ControlTimes& times,
                                           const Notice& notice) {
  HONE_ASSERT(environment.world_size > 1);
  const Patience patience(times, notice);
  return environment.rank == 0 ? gather(environment, times, patience) : join(environment, times, patience);
}

}  // namespace hone
