// A call of the C interface: one at a time, without output of its own, and errors as objects.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <hone/hone.h>
#include "core/base/error.h"

struct hone_error {
  hone::Error error;
};

namespace hone {

/// Runs `work`; returns 0, or the exit code of what it throws, with `*error` filled if that is not null.
int guarded_call(hone_error** error, const std::function<void()>& work);

class LibraryCall {
 public:
  /// `listener` may be null.
  explicit LibraryCall(const hone_listener* listener) : listener_(listener != nullptr ? *listener : hone_listener{}) {}

  /// Runs `work` as the only call, with the process's standard output and error captured: standard error and, unless
  /// `keeps_output`, standard output go to on_log. As guarded_call().
  int run(hone_error** error, bool keeps_output, const std::function<void()>& work);

  /// What `work` has written to standard output, with `keeps_output`.
  const std::string& output() const { return output_; }

  // The listener's functions. Whether it asks for the end is 0 without one.
  void log(const std::string& text) const;
  bool metrics(const std::string& row) const;
  bool text(int64_t sequence, const std::string& text) const;

  /// Whether a call is running.
  static bool running();

 private:
  hone_listener listener_;
  std::string output_;
};

/// A copy that hone_text_free() frees.
char* text_of(const std::string& text);

}  // namespace hone
