#include "dist/callers.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

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
  // No more at a time than there is room for, so that those who are there are heard in between.
  for (size_t i = 0; i < most_; ++i) {
    Socket socket = accept_from(listener_, 0);
    if (!socket.open()) {
      if ((errno == EMFILE || errno == ENFILE) && !callers_.empty()) make_room();  // for the next serving
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

}  // namespace hone
