#include "dist/transport/gathering.h"

#include <fmt/format.h>

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/program.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

Callers::Caller::Caller(Socket from, ListenersProof start)
    : socket(std::move(from)), address(peer_address(socket)), proof(std::move(start)), deadline(kProofSeconds) {
  reader.set_longest(kLongestProof);
}

Callers::Callers(Socket listener, std::string secret, Claims expected, size_t most)
    : listener_(std::move(listener)), secret_(std::move(secret)), expected_(std::move(expected)), most_(most) {
  expected_.port = port_of(listener_);
}

void Callers::add_descriptors(std::vector<int>& descriptors) const {
  descriptors.push_back(listener_.descriptor());
  for (const Caller& caller : callers_) descriptors.push_back(caller.socket.descriptor());
}

void Callers::make_room() {
  std::map<std::string, size_t> held;
  for (const Caller& caller : callers_) ++held[caller.address];
  const auto greediest =
      std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  callers_.erase(std::find_if(callers_.begin(), callers_.end(),
                              [&](const Caller& caller) { return caller.address == greediest->first; }));
}

void Callers::let_in() {
  // Accepts at most `most_` connections per call, so that existing ones are served in between.
  for (size_t i = 0; i < most_; ++i) {
    Socket socket = accept_from(listener_, 0);
    if (!socket.open()) {
      if ((errno == EMFILE || errno == ENFILE) && !callers_.empty()) make_room();  // for the next call
      return;
    }
    if (callers_.size() == most_) make_room();
    callers_.emplace_back(std::move(socket), ListenersProof(secret_, expected_));
  }
}

ListenersProof::State Callers::hear(Caller& caller) {
  using State = ListenersProof::State;
  State state = State::kOpen;
  bool closed = false;
  while (state == State::kOpen) {
    closed = caller.reader.read(caller.socket) == MessageReader::State::kClosed;
    const std::optional<Message> message = caller.reader.next();
    if (!message) break;
    state = caller.proof.take(caller.socket, *message);
  }
  if (caller.proof.other_secret()) other_secret_of_ = caller.address;
  const bool lost = state == State::kOpen && (closed || caller.deadline.passed());
  return lost ? State::kFailed : state;
}

std::vector<ProvenCaller> Callers::serve() {
  using State = ListenersProof::State;
  let_in();
  std::vector<ProvenCaller> proven;
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    const State state = hear(*caller);
    if (state == State::kProven) {
      proven.push_back({caller->proof.claims(), std::move(caller->socket), std::move(caller->reader)});
    }
    caller = state == State::kOpen ? std::next(caller) : callers_.erase(caller);
  }
  return proven;
}

namespace {

constexpr uint32_t kLongestHello = 64 << 10;
/// Unauthenticated connections that may be open at a time in addition to those of the ranks.
constexpr size_t kMostGatheringStrangers = 128;
constexpr const char* kLoopback = "127.0.0.1";

bool say(const Socket& socket, ControlMessage type, std::string_view text = {}) {
  return send_message(socket, static_cast<uint8_t>(type), text);
}

/// Whether the other side has closed the connection. Joined ranks send nothing before kWelcome.
bool has_left(const Socket& socket) {
  char byte = 0;
  const ssize_t count = ::recv(socket.descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

std::string hello_text(const RankFacts& facts, const std::string& process) {
  Json json = facts_json(facts);
  json["process"] = process;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Gathering::Gathering(const LaunchEnvironment& environment, Socket listener, RunKey key)
    : environment_(environment),
      key_(std::move(key)),
      callers_(std::move(listener), key_.secret,
               Claims{version(), "control", key_.run, 0, environment.rank, environment.world_size},
               kMostGatheringStrangers + static_cast<size_t>(environment.world_size)),
      facts_(static_cast<size_t>(environment.world_size)) {
  facts_[0] = own_facts(environment.local_rank);
}

void Gathering::serve(double seconds) {
  std::vector<int> descriptors;
  callers_.add_descriptors(descriptors);
  for (const Arriving& rank : arriving_) descriptors.push_back(rank.caller.socket.descriptor());
  for (const Joined& rank : connections_) descriptors.push_back(rank.connection.socket.descriptor());
  wait_to_read(descriptors, std::min(seconds, Callers::kBetweenServings));
  drop_who_left();
  for (ProvenCaller& caller : callers_.serve()) {
    if (caller.claims.run != key_.run) continue;  // a rank of another run with the same secret
    caller.reader.set_longest(kLongestHello);
    arriving_.push_back({std::move(caller), Deadline(kProofSeconds)});
  }
  std::erase_if(arriving_, [this](Arriving& rank) { return arrived(rank); });
}

void Gathering::drop_who_left() {
  std::erase_if(connections_, [](const Joined& rank) { return has_left(rank.connection.socket); });
}

bool Gathering::arrived(Arriving& arriving) {
  ProvenCaller& caller = arriving.caller;
  const bool closed = caller.reader.read(caller.socket) == MessageReader::State::kClosed;
  const std::optional<Message> message = caller.reader.next();
  if (!message) return closed || arriving.deadline.passed();
  if (message->type == static_cast<uint8_t>(ControlMessage::kFacts)) join(std::move(caller), *message);
  return true;
}

void Gathering::join(ProvenCaller caller, const Message& message) {
  const Json hello = parse_json(message.bytes);
  std::optional<RankFacts> facts = facts_of(hello);
  if (!facts || !hello.contains("process") || !hello["process"].is_string()) return;
  facts->address = peer_address(caller.socket);
  if (is_loopback(facts->address)) facts->address.clear();
  const std::string process = hello["process"];
  const int rank = caller.claims.rank;
  const auto there = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const Joined& joined) { return joined.connection.rank == rank; });
  const std::string who = fmt::format("rank {} ({}, pid {})", rank, facts->host, facts->pid);
  std::string problem = problem_with(caller.claims, who);
  if (problem.empty() && there != connections_.end() && there->process != process) {
    problem = fmt::format("{} was started twice: another process has this rank", who);
  }
  if (!problem.empty()) {
    say(caller.socket, ControlMessage::kRefused, problem);
    throw UserError(problem, "ranks", "start all ranks the same way, with the same program");
  }
  if (there != connections_.end()) connections_.erase(there);  // it did not receive kAccepted
  if (!say(caller.socket, ControlMessage::kAccepted)) return;
  facts_[static_cast<size_t>(rank)] = *std::move(facts);
  connections_.push_back({process, {rank, std::move(caller.socket), std::move(caller.reader)}});
}

std::string Gathering::problem_with(const Claims& claims, const std::string& who) const {
  if (claims.world_size != environment_.world_size) {
    return fmt::format("{} was started as one of {} ranks, rank 0 as one of {}", who, claims.world_size,
                       environment_.world_size);
  }
  if (claims.version != version()) {
    return fmt::format("{} is Hone {}, rank 0 is Hone {}", who, claims.version, version());
  }
  if (claims.rank < 1 || claims.rank >= claims.world_size) {
    return fmt::format("{} was started twice: another process has this rank", who);
  }
  return "";
}

std::vector<int> Gathering::missing() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < environment_.world_size; ++rank) {
    const bool has = std::any_of(connections_.begin(), connections_.end(),
                                 [&](const Joined& joined) { return joined.connection.rank == rank; });
    if (!has) ranks.push_back(rank);
  }
  return ranks;
}

void Gathering::tell_all(ControlMessage type, const std::string& text) const {
  for (const Joined& rank : connections_) say(rank.connection.socket, type, text);
}

std::unique_ptr<ControlChannel> Gathering::welcome(const ControlTimes& times) {
  // Ranks on rank 0's host connected over the loopback: ranks of other hosts reach them at rank 0's address. If all
  // ranks are on one host, they listen on the loopback only.
  const bool one_host = std::all_of(facts_.begin(), facts_.end(), [this](const RankFacts& rank) {
    return rank.address.empty() || rank.place.same_loopback(facts_[0].place);
  });
  Json ranks = Json::array();
  for (RankFacts& facts : facts_) {
    if (one_host) facts.address = kLoopback;
    ranks.push_back(facts_json(facts));
    if (facts.address.empty()) facts.address = kLoopback;  // for use by rank 0
  }
  tell_all(ControlMessage::kWelcome, ranks.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::vector<RankConnection> connections;
  for (Joined& rank : connections_) connections.push_back(std::move(rank.connection));
  return std::make_unique<ControlChannel>(0, facts_, std::move(connections), times, key_);
}

}  // namespace hone
