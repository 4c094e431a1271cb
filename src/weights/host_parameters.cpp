#include "weights/host_parameters.h"

#include <algorithm>
#include <cstring>

#include "core/transfer.h"

namespace hone {

namespace {

bool is_whole_on_host(const Parameter& parameter) {
  return !parameter.shards_values() && parameter.master().device.kind == DeviceKind::kCpu;
}

}  // namespace

const float* HostParameters::operator[](const Parameter& parameter) {
  if (is_whole_on_host(parameter)) return parameter.master().as<float>();
  Copy& copy = copy_of(parameter);
  if (copy.read.valid()) copy.read.get();
  return copy.values.data();
}

void HostParameters::prefetch(const Parameter& parameter) {
  if (!is_whole_on_host(parameter)) copy_of(parameter);
}

HostParameters::Copy& HostParameters::copy_of(const Parameter& parameter) {
  const auto found =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.parameter == &parameter; });
  if (found != copies_.end()) {
    copies_.splice(copies_.begin(), copies_, found);
    return copies_.front();
  }
  if (copies_.size() < kKept) copies_.emplace_back();
  copies_.splice(copies_.begin(), copies_, std::prev(copies_.end()));
  Copy& copy = copies_.front();
  if (copy.read.valid()) copy.read.get();
  copy.parameter = &parameter;
  copy.values.resize(static_cast<size_t>(parameter.shape().numel()));
  float* to = copy.values.data();
  if (parameter.shards_values()) {  // by collectives, which have one order
    HONE_ASSERT(reader_ != nullptr, parameter.name());
    reader_->read(parameter, StatePart::kValue, 0, parameter.shape().numel(),
                  [&](const std::byte* elements, int64_t count) {
                    std::memcpy(to, elements, static_cast<size_t>(count) * sizeof(float));
                    to += count;
                  });
    return copy;
  }
  const Tensor& values = parameter.master();
  values.as<float>();  // asserts the type
  copy.read = std::async(std::launch::async, [values, to] { copy_to_host(to, values); });
  return copy;
}

}  // namespace hone
