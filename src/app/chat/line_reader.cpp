#include "app/chat/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "core/error.h"

namespace hone {

namespace {

constexpr size_t kMostBytes = size_t{64} << 20;  // of a line
constexpr int kPollMilliseconds = 100;           // another thread may have got the signal

// A handler can reach nothing but static storage.
volatile std::sig_atomic_t ctrl_c_pressed = 0;

void remember(int) { ctrl_c_pressed = 1; }

}  // namespace

CtrlC::CtrlC() {
  ctrl_c_pressed = 0;
  std::signal(SIGINT, remember);
}

CtrlC::~CtrlC() { std::signal(SIGINT, SIG_DFL); }

bool CtrlC::pressed() { return ctrl_c_pressed != 0; }

bool CtrlC::take() {
  const bool was = pressed();
  ctrl_c_pressed = 0;
  return was;
}

LineReader::Event LineReader::next(std::string& line) {
  while (true) {
    if (CtrlC::take()) {
      buffer_.clear();
      return Event::kCtrlC;
    }
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Event::kLine;
    }
    if (ended_) return Event::kEnd;
    pollfd waiting{descriptor_, POLLIN, 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    char bytes[4096];
    const ssize_t got = read(descriptor_, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    ended_ = got <= 0;  // a terminal that is gone ends the conversation too
    if (got > 0) buffer_.append(bytes, static_cast<size_t>(got));
    if (buffer_.size() > kMostBytes) {
      throw UserError("a line is longer than 64 MiB", "standard input", "write shorter messages");
    }
  }
}

}  // namespace hone
