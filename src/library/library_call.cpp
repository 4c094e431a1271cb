#include "library/library_call.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "app/cli.h"
#include "core/files/standard_output.h"
#include "train/run/stop_signal.h"

namespace hone {

namespace {

std::mutex one_call;
std::atomic<bool> call_runs = false;
thread_local bool within_callback = false;

/// Within a callback another call would wait for the one that calls it.
class Callback {
 public:
  Callback() : before_(within_callback) { within_callback = true; }
  ~Callback() { within_callback = before_; }

 private:
  bool before_;
};

/// Ignores SIGPIPE, so that a closed connection is an error of write().
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~WithoutSigpipe() { sigaction(SIGPIPE, &before_, nullptr); }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  struct sigaction before_ {};
};

class Running {
 public:
  Running() {
    withdraw_stop();
    call_runs = true;
  }
  ~Running() {
    call_runs = false;
    withdraw_stop();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

}  // namespace

bool LibraryCall::running() { return call_runs; }

void LibraryCall::log(const std::string& text) const {
  const Callback callback;
  if (listener_.on_log != nullptr) listener_.on_log(listener_.user, text.c_str());
}

bool LibraryCall::metrics(const std::string& row) const {
  const Callback callback;
  return listener_.on_metrics != nullptr && listener_.on_metrics(listener_.user, row.c_str()) != 0;
}

bool LibraryCall::text(int64_t sequence, const std::string& text) const {
  const Callback callback;
  return listener_.on_text != nullptr && listener_.on_text(listener_.user, sequence, text.c_str()) != 0;
}

int guarded_call(hone_error** error, const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    if (error != nullptr) *error = new (std::nothrow) hone_error{failure};
    return static_cast<int>(failure.code());
  }
}

int LibraryCall::run(hone_error** error, bool keeps_output, const std::function<void()>& work) {
  return guarded_call(error, [&] {
    if (within_callback) {
      throw UserError("a callback calls the library, which runs one call at a time", "",
                      "return first; only hone_stop() may be called there");
    }
    const std::lock_guard lock(one_call);
    const WithoutSigpipe without;
    const OutputCapture capture([&](int descriptor, std::string_view text) {
      if (keeps_output && descriptor == STDOUT_FILENO) {
        output_ += text;
      } else {
        log(std::string(text));
      }
    });
    const Running running;
    work();
  });
}

char* text_of(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace hone
