#include "core/files/answer_limits.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "core/base/quiet_thread.h"

namespace hone {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{5};

}  // namespace

AnswerLimits::AnswerLimits(std::function<void()> stop) : stop_(std::move(stop)) {
  thread_ = quiet_thread([this] { watch(); });
}

AnswerLimits::~AnswerLimits() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  if (socket_ >= 0) ::close(socket_);
}

void AnswerLimits::use_socket(int socket) {
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0) ::close(socket_);
  socket_ = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  bytes_before_ = 0;
}

void AnswerLimits::begin(int64_t most_bytes, std::chrono::milliseconds most_time) {
  const std::lock_guard lock(mutex_);
  most_bytes_ = most_bytes;
  most_time_ = most_time;
  in_call_ = true;
  bytes_before_ = received();
  since_ = std::chrono::steady_clock::now();
  exceeded_ = Exceeded::kNothing;
  changed_.notify_all();
}

AnswerLimits::Exceeded AnswerLimits::end() {
  const std::lock_guard lock(mutex_);
  in_call_ = false;
  return exceeded_;
}

int64_t AnswerLimits::received() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool known = socket_ >= 0 && ::getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  return known ? static_cast<int64_t>(info.tcpi_bytes_received) : 0;
}

void AnswerLimits::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [&] { return ending_ || in_call_; });
    changed_.wait_for(lock, kBetweenLooks, [&] { return ending_; });
    if (!in_call_) continue;
    if (received() - bytes_before_ > most_bytes_) exceeded_ = Exceeded::kBytes;
    if (std::chrono::steady_clock::now() - since_ > most_time_ && exceeded_ == Exceeded::kNothing) {
      exceeded_ = Exceeded::kTime;
    }
    if (exceeded_ == Exceeded::kNothing) continue;
    // Repeatedly: a call that is still connecting has nothing to stop.
    lock.unlock();
    stop_();
    lock.lock();
  }
}

}  // namespace hone
