#include "core/files/descriptor.h"

#include <unistd.h>

namespace hone {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

bool Descriptor::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  return descriptor < 0 || ::close(descriptor) == 0;
}

}  // namespace hone
