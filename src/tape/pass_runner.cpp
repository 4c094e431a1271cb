#include "tape/pass_runner.h"

namespace hone {

PassRunner::PassRunner(Stream& device, bool host)
    : device_(device), memory_(device.device()), context_(device, memory_.scratch) {
  if (host) host_.emplace(device);
}

void PassRunner::begin_dry() {
  memory_.begin_dry();
  if (host_) host_->begin_dry();
}

void PassRunner::reserve() {
  memory_.reserve();
  if (host_) host_->reserve();
}

void PassRunner::synchronize() { host_ ? host_->synchronize() : device_.synchronize(); }

}  // namespace hone
