#include "dist/transport/control_channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/quiet_thread.h"
#include "dist/control/local_process.h"
#include "dist/transport/transport.h"

namespace hone {

namespace {

/// How long a rank that leaves waits for the other side to read its last messages.
constexpr int kGoodbyeMilliseconds = 1000;
/// Unread texts that a peer may have sent. A correct peer waits for the other texts after each one.
constexpr size_t kMostTexts = 4;

std::string at_step_text(int64_t step) {
  return step > 0 ? fmt::format("step {}", step) : std::string("the start, before its first step");
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

ControlChannel::ControlChannel(int rank, std::vector<RankFacts> ranks, std::vector<RankConnection> connections,
                               ControlTimes times, RunKey key)
    : rank_(rank),
      ranks_(std::move(ranks)),
      times_(times),
      key_(std::move(key)),
      hang_(times.hang),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (RankConnection& connection : connections) {
    connection.reader.set_longest(kLongestMessage);
    peers_.push_back(std::make_unique<Peer>(std::move(connection)));
  }
  server_ = quiet_thread([this] { serve(); });
}

ControlChannel::~ControlChannel() {
  stopping_ = true;
  const uint64_t one = 1;
  (void)!::write(wake_.descriptor(), &one, sizeof one);
  server_.join();
  for (const auto& peer : peers_) {
    send_to(*peer, ControlMessage::kGoodbye, {});
    ::shutdown(peer->connection.socket.descriptor(), SHUT_WR);
  }
  // Closing a socket with unread bytes resets the connection and discards what the other side has not read yet.
  for (const auto& peer : peers_) {
    pollfd entry{peer->connection.socket.descriptor(), POLLIN, 0};
    while (::poll(&entry, 1, kGoodbyeMilliseconds) > 0 &&
           peer->connection.reader.read(peer->connection.socket) == MessageReader::State::kOpen) {
      peer->connection.reader.next();
    }
  }
}

int64_t ControlChannel::begin_collective(const char* name) {
  collective_since_ = Clock::now().time_since_epoch().count();
  collective_ = name;
  return ++collectives_;
}

void ControlChannel::end_collectives(int64_t count) {
  for (int64_t ended = ended_collectives_; ended < count;) ended_collectives_.compare_exchange_weak(ended, count);
}

std::unique_ptr<Transport> ControlChannel::connect_memory() {
  std::unique_ptr<Transport> transport = on_one_host() ? connect_shared_memory(*this) : nullptr;
  return transport ? std::move(transport) : connect_tcp(*this);
}

// Exchange of texts.

std::vector<std::string> ControlChannel::exchange(std::string_view mine) {
  return rank_ == 0 ? exchange_at_rank_0(mine) : exchange_through_rank_0(mine);
}

bool ControlChannel::texts_are_there() const {
  return std::none_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->texts.empty(); });
}

std::vector<std::string> ControlChannel::exchange_at_rank_0(std::string_view mine) {
  std::vector<std::string> texts(ranks_.size());
  texts[0] = mine;
  {
    std::unique_lock lock(mutex_);
    own_text_since_ = Clock::now();
    changed_.wait(lock, [&] { return ended_ || texts_are_there(); });
    own_text_since_.reset();
    throw_if_ended();
    for (const auto& peer : peers_) {
      texts[static_cast<size_t>(peer->connection.rank)] = std::move(peer->texts.front().bytes);
      peer->texts.pop_front();
    }
  }
  const std::string packed = pack_texts(texts);
  for (const auto& peer : peers_) send_to(*peer, ControlMessage::kTexts, packed);
  return texts;
}

std::vector<std::string> ControlChannel::exchange_through_rank_0(std::string_view mine) {
  Peer& peer = *peers_.front();
  send_to(peer, ControlMessage::kText, mine);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !peer.texts.empty() || peer.left; });
  if (peer.texts.empty()) {
    throw_if_ended();
    throw Error(ExitCode::kDeviceFailed, fmt::format("{} ended while this rank waited for it", name_of(0)), "",
                "look at that rank's log");
  }
  std::optional<std::vector<std::string>> texts = unpack_texts(peer.texts.front().bytes);
  peer.texts.pop_front();
  if (!texts || texts->size() != ranks_.size()) {
    throw Error(ExitCode::kDeviceFailed, fmt::format("{} sent a reply without one text per rank", name_of(0)), "",
                "look at that rank's log");
  }
  return *std::move(texts);
}

/// Ends the group if a rank has left without sending its text, or has not sent it for hang_ seconds.
void ControlChannel::find_missing_texts() {
  std::vector<int> missing;
  std::string who;
  bool left = false;
  double waited = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto is_missing = [&](int rank) {
      missing.push_back(rank);
      who += (who.empty() ? "" : ", ") + name_of(rank);
    };
    if (own_text_since_) {
      waited = seconds_between(*own_text_since_, Clock::now());
    } else {
      is_missing(0);
    }
    for (const auto& peer : peers_) {
      if (!peer->texts.empty()) {
        waited = std::max(waited, seconds_between(peer->texts.front().since, Clock::now()));
        continue;
      }
      left |= peer->left;
      is_missing(peer->connection.rank);
    }
  }
  if (waited == 0 || missing.empty()) return;
  if (left) return end({fmt::format("{} left while the other ranks were waiting", who), missing});
  if (waited > hang_) {
    end({fmt::format("the other ranks have waited {:.0f} s (ddp_timeout) for {}", waited, who), missing, true});
  }
}

// Sending.

void ControlChannel::send_to(Peer& peer, ControlMessage type, std::string_view bytes) {
  const std::lock_guard lock(peer.sending);
  send_message(peer.connection.socket, static_cast<uint8_t>(type), bytes);  // a broken connection is seen by serve()
}

RankProgress ControlChannel::own_progress() const {
  const int64_t ended = ended_collectives_;
  RankProgress progress{step_, collectives_, "", 0};
  if (ended >= progress.collectives) return progress;
  progress.collective = collective_;
  progress.waited = seconds_between(Clock::time_point(Clock::duration(collective_since_.load())), Clock::now());
  return progress;
}

void ControlChannel::send_heartbeats() {
  const std::string text = heartbeat_text(own_progress());
  for (const auto& peer : peers_) {
    if (!has_left(*peer)) send_to(*peer, ControlMessage::kHeartbeat, text);
  }
}

// Receiving.

void ControlChannel::serve() {
  Clock::time_point next_beat = Clock::now();
  while (!stopping_) {
    std::vector<pollfd> entries{{wake_.descriptor(), POLLIN, 0}};
    std::vector<Peer*> open;
    for (const auto& peer : peers_) {
      if (has_left(*peer)) continue;
      entries.push_back({peer->connection.socket.descriptor(), POLLIN, 0});
      open.push_back(peer.get());
    }
    const double wait = std::clamp(seconds_between(Clock::now(), next_beat), 0.0, times_.heartbeat);
    ::poll(entries.data(), entries.size(), static_cast<int>(wait * 1e3) + 1);
    for (size_t i = 0; i < open.size(); ++i) {
      if (entries[i + 1].revents != 0) listen(*open[i]);
    }
    if (Clock::now() < next_beat) continue;
    next_beat =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(times_.heartbeat));
    send_heartbeats();
    find_silent();
    if (rank_ != 0) continue;
    find_hanging();
    find_missing_texts();
  }
}

bool ControlChannel::has_left(const Peer& peer) const {
  const std::lock_guard lock(mutex_);
  return peer.left;
}

void ControlChannel::leave(Peer& peer) {
  {
    const std::lock_guard lock(mutex_);
    peer.left = true;
    changed_.notify_all();
  }
  ::shutdown(peer.connection.socket.descriptor(), SHUT_WR);
}

void ControlChannel::listen(Peer& peer) {
  const MessageReader::State state = peer.connection.reader.read(peer.connection.socket);
  peer.heard = Clock::now();
  std::string why = "its connection has ended";
  bool ended = state == MessageReader::State::kClosed;
  const std::optional<Message> message = peer.connection.reader.next();
  if (message && !take(peer, *message)) {
    ended = true;
    why = "it sent an invalid message";
  }
  if (!ended || has_left(peer)) return;
  end({lost_text(peer, why), {peer.connection.rank}}, {}, &peer);
}

bool ControlChannel::take(Peer& peer, const Message& message) {
  const int rank = peer.connection.rank;
  switch (static_cast<ControlMessage>(message.type)) {
    case ControlMessage::kHeartbeat: {
      const std::optional<RankProgress> progress = heartbeat_of(message.bytes);
      const std::lock_guard lock(mutex_);
      if (progress) peer.progress = *progress;
      return progress.has_value();
    }
    case ControlMessage::kText:
      return rank_ == 0 && take_text(peer, message);
    case ControlMessage::kTexts:
      return rank_ != 0 && take_text(peer, message);
    case ControlMessage::kFailed:
      if (rank_ != 0) return false;
      end({fmt::format("{} failed: {}", name_of(rank), message.bytes), {rank}}, {}, &peer);
      return true;
    case ControlMessage::kEnded: {
      const std::optional<GroupEnd> said = end_of(message.bytes, size());
      if (rank_ == 0 || !said) return false;
      end(*said);
      return true;
    }
    case ControlMessage::kGoodbye:
      leave(peer);
      return true;
    default:
      return false;
  }
}

bool ControlChannel::take_text(Peer& peer, const Message& message) {
  const std::lock_guard lock(mutex_);
  if (peer.texts.size() >= kMostTexts) return false;
  peer.texts.push_back({message.bytes, Clock::now()});
  changed_.notify_all();
  return true;
}

// Detection of lost ranks.

int ControlChannel::ranks_on_own_cores() const {
  const RankFacts& own = ranks_[static_cast<size_t>(rank_)];
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [&](const RankFacts& rank) {
    return rank.host == own.host && rank.cores == own.cores;
  }));
}

bool ControlChannel::on_one_host() const {
  const ProcessPlace& own = ranks_[static_cast<size_t>(rank_)].place;
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const RankFacts& rank) { return is_loopback(rank.address) || rank.place.same_loopback(own); });
}

int ControlChannel::ranks_of_host() const { return hone::ranks_of_host(ranks_); }

std::string ControlChannel::name_of(int rank) const {
  const RankFacts& facts = ranks_[static_cast<size_t>(rank)];
  return fmt::format("rank {} ({}, pid {})", rank, facts.host, facts.pid);
}

std::string ControlChannel::lost_text(const Peer& peer, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  return fmt::format("{} is lost: {}; last seen at {}", name_of(peer.connection.rank), why,
                     at_step_text(peer.progress.step));
}

void ControlChannel::find_silent() {
  for (const auto& peer : peers_) {
    const double silent = seconds_between(peer->heard, Clock::now());
    if (has_left(*peer) || silent < times_.silence) continue;
    const int rank = peer->connection.rank;
    leave(*peer);
    end({lost_text(*peer, fmt::format("nothing was heard of it for {:.0f} s", silent)), {rank}, true});
  }
}

void ControlChannel::find_hanging() {
  std::unique_lock lock(mutex_);
  std::vector<RankProgress> all(ranks_.size());
  all[0] = own_progress();
  bool all_here = true;
  for (const auto& peer : peers_) {
    all[static_cast<size_t>(peer->connection.rank)] = peer->progress;
    all_here &= !peer->left;
  }
  const auto longest = std::max_element(
      all.begin(), all.end(), [](const RankProgress& a, const RankProgress& b) { return a.waited < b.waited; });
  if (ended_ || !all_here || longest->waited < hang_) return;
  const RankProgress waiting = *longest;
  std::vector<int> behind;
  std::string who;
  for (int rank = 0; rank < size(); ++rank) {
    const RankProgress& progress = all[static_cast<size_t>(rank)];
    if (progress.collectives >= waiting.collectives) continue;
    behind.push_back(rank);
    who += fmt::format("{}{}, which is at {} and has reached {} collectives", who.empty() ? "" : "; ", name_of(rank),
                       at_step_text(progress.step), progress.collectives);
  }
  lock.unlock();
  if (who.empty()) who = "data, although all ranks have reached it: check the network between their hosts";
  end({fmt::format("{} number {} of {} has waited {:.0f} s (ddp_timeout) for {}", waiting.collective,
                   waiting.collectives, at_step_text(waiting.step), waiting.waited, who),
       behind, true});
}

void ControlChannel::end(GroupEnd end, std::string_view own_failure, Peer* gone) {
  std::vector<std::function<void()>> callbacks;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (gone != nullptr) gone->left = true;
    is_first = !ended_;
    if (is_first) {
      ended_ = end;
      callbacks.swap(callbacks_);
    }
    changed_.notify_all();
  }
  if (gone != nullptr) ::shutdown(gone->connection.socket.descriptor(), SHUT_WR);
  if (!is_first) return;
  const std::string message = end_text(end);
  for (const auto& peer : peers_) {
    if (rank_ == 0 && !has_left(*peer)) send_to(*peer, ControlMessage::kEnded, message);
  }
  if (rank_ != 0 && !own_failure.empty()) send_to(*peers_.front(), ControlMessage::kFailed, own_failure);
  for (const auto& callback : callbacks) callback();
  if (!end.stuck) return;
  // A stopped or hanging process would block its launcher and hold the device's memory forever.
  for (const int rank : end.lost) {
    const RankFacts& facts = ranks_.at(static_cast<size_t>(rank));
    if (rank != rank_) end_process(facts.pid, facts.place);
  }
}

void ControlChannel::fail(const std::string& reason) {
  end({fmt::format("{} failed: {}", name_of(rank_), reason), {rank_}}, reason);
}

void ControlChannel::throw_if_ended() const {
  if (ended_) {
    throw Error(ExitCode::kDeviceFailed, ended_->reason, "",
                "look at that rank's log; then go on from the newest checkpoint with resume=auto");
  }
}

void ControlChannel::check() {
  const std::lock_guard lock(mutex_);
  throw_if_ended();
}

std::vector<int> ControlChannel::lost() const {
  const std::lock_guard lock(mutex_);
  return ended_ ? ended_->lost : std::vector<int>{};
}

void ControlChannel::on_end(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace hone
