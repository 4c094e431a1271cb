// Descriptor: a file descriptor with an owner.
#pragma once

#include <utility>

namespace hone {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  /// False if the system reports an error, as that of a full disk on some file systems.
  bool close();

 private:
  int descriptor_ = -1;
};

}  // namespace hone
