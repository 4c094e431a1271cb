#include "train/run/stop_signal.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace hone {

namespace {

// A signal handler can only access static storage.
volatile std::sig_atomic_t received = 0;
volatile int64_t interrupted_at = 0;  // ms, time of the first SIGINT
std::atomic<int64_t> current_step = 0;

/// A launcher and the terminal may both send SIGINT for one key press.
constexpr int64_t kSameKeyMs = 500;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Makes only async-signal-safe calls.
void answer() {
  char text[96] = "\nfinishing step ";
  char digits[24];
  int count = 0;
  for (int64_t rest = current_step; rest > 0 || count == 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  size_t length = std::strlen(text);
  while (count > 0) text[length++] = digits[--count];
  constexpr char kRest[] = " and saving; again to stop now\n";
  std::memcpy(text + length, kRest, sizeof(kRest) - 1);
  const ssize_t ignored = write(STDERR_FILENO, text, length + sizeof(kRest) - 1);
  static_cast<void>(ignored);
}

void remember(int signal) {
  const int saved = errno;
  if (signal == SIGINT) {
    if (interrupted_at != 0 && now_ms() - interrupted_at > kSameKeyMs) {
      std::signal(SIGINT, SIG_DFL);
      raise(SIGINT);
    } else if (interrupted_at == 0) {
      interrupted_at = now_ms();
      answer();
    }
  }
  if (received == 0) received = signal;
  errno = saved;
}

/// In place of a signal's number.
constexpr std::sig_atomic_t kCaller = -1;

}  // namespace

void request_stop() {
  if (received == 0) received = kCaller;
}

void withdraw_stop() { received = 0; }

bool stop_requested() { return received != 0; }

namespace {

const char* name_of(std::sig_atomic_t signal) {
  switch (signal) {
    case kCaller:
      return "its caller";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return "";
  }
}

std::sig_atomic_t ended_by = 0;

}  // namespace

const char* last_stop() { return name_of(ended_by); }

StopSignal::StopSignal() {
  if (received != kCaller) received = 0;
  interrupted_at = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  ended_by = received;
  received = 0;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

void StopSignal::at_step(int64_t step) const { current_step = step; }

bool StopSignal::requested() const { return stop_requested(); }

const char* StopSignal::name() const { return name_of(received); }

}  // namespace hone
