// Transport: bytes between the ranks' host memory. What collectives of CPU ranks are made of (pairwise.h).
#pragma once

#include <cstddef>

namespace hone {

/// Messages from one rank to another arrive in the order they were sent. Used by one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts; the memory must stay as it is until wait().
  virtual void send(int to, const std::byte* data, size_t bytes) = 0;
  /// Starts; the sender's message has the same size.
  virtual void receive(int from, std::byte* data, size_t bytes) = 0;
  /// Waits for all that was started. Throws Error(kDeviceFailed) if a rank is lost.
  virtual void wait() = 0;
};

}  // namespace hone
