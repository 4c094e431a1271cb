#include "train/stop_signal.h"

#include <csignal>

namespace hone {

namespace {

// A handler can reach nothing but static storage.
volatile std::sig_atomic_t received = 0;

void remember(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  std::signal(SIGTERM, remember);
  std::signal(SIGINT, remember);
}

StopSignal::~StopSignal() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

bool StopSignal::requested() const { return received != 0; }
const char* StopSignal::name() const { return received == SIGTERM ? "SIGTERM" : received == SIGINT ? "SIGINT" : ""; }

}  // namespace hone
