// Stops calls of an HTTP client whose answer is too large or takes too long: the HTTP library limits neither the lines
// of an answer's head nor its total time. Counts the bytes that the connection has received.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace hone {

class AnswerLimits {
 public:
  enum class Exceeded { kNothing, kBytes, kTime };

  /// `stop` makes the client's call return soon; called on a thread of this object.
  explicit AnswerLimits(std::function<void()> stop);
  ~AnswerLimits();
  AnswerLimits(const AnswerLimits&) = delete;
  AnswerLimits& operator=(const AnswerLimits&) = delete;

  /// Call when the client has created a socket for the present call and the next ones.
  void use_socket(int socket);
  /// Call before and after each call of the client, with its limits.
  void begin(int64_t most_bytes, std::chrono::milliseconds most_time);
  Exceeded end();

 private:
  void watch();
  int64_t received() const;

  const std::function<void()> stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex:
  int socket_ = -1;  // a duplicate, so its number cannot be reused
  bool in_call_ = false, ending_ = false;
  int64_t bytes_before_ = 0, most_bytes_ = 0;
  std::chrono::milliseconds most_time_{};
  std::chrono::steady_clock::time_point since_;
  Exceeded exceeded_ = Exceeded::kNothing;
  std::thread thread_;
};

}  // namespace hone
