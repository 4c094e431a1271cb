#include "core/descriptor.h"

#include <unistd.h>

namespace hone {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

void Descriptor::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace hone
