// Standard output as a result: what cannot be written there is an error, not silence.
#pragma once

#include <functional>
#include <stdexcept>
#include <string_view>

#include "core/base/error.h"

namespace hone {

/// Standard output could not be written: a full disk, a closed descriptor. Exit code 2.
class OutputLost : public Error {
 public:
  /// `error` is an errno.
  explicit OutputLost(int error);
};

/// The reader of standard output went away (`hone schema | head`). The program ends without a message, with the exit
/// code of a program that SIGPIPE ends.
class ReaderGone : public std::runtime_error {
 public:
  ReaderGone();
  static constexpr int kExitCode = 128 + 13;
};

/// Throws OutputLost or ReaderGone for the errno of a failed write.
[[noreturn]] void throw_output_failure(int error);

/// While an object exists, what is written to standard output (1) and standard error (2) of this process goes to its
/// function instead, from any thread, one text at a time. At most one object at a time.
class OutputCapture {
 public:
  using Sink = std::function<void(int descriptor, std::string_view text)>;

  explicit OutputCapture(Sink sink);
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  static bool active();
};

/// Writes all bytes to a descriptor; waits if it does not block and is full. Returns 0, or the errno of a failure.
int write_to_descriptor(int descriptor, std::string_view text);

/// Opens descriptors 0 to 2 if they are closed, such that reading and writing fail there. Else a file that is opened
/// later would get such a number, and what is printed.
void reserve_standard_descriptors();

}  // namespace hone
