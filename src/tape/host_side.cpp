#include "tape/host_side.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "core/base/aligned.h"
#include "core/cuda/planned_device.h"

namespace hone {

HostSide::HostSide(Stream& device)
    : device_(device),
      memory_(Device{}),
      pool_(device.pool().size()),
      stream_(Device{}, pool_),
      context_(stream_, memory_.scratch),
      link_(is_planned(device.device()) ? nullptr : std::make_unique<StreamLink>(device, stream_)) {}

HostSide::~HostSide() {
  try {
    synchronize();  // queued work uses the memory
  } catch (const std::exception&) {
    // A caller that handles the failure has waited for it; the memory can be freed in any case.
  }
}

void HostSide::begin_dry() {
  memory_.begin_dry();
  for (Way* way : {&to_host_, &to_device_}) {
    way->memory.reset();
    way->high_water = 0;
  }
}

void HostSide::reserve() {
  memory_.reserve();
  for (Way* way : {&to_host_, &to_device_}) way->memory = HostBuffer(device_.device(), way->high_water);
}

size_t HostSide::bytes() const { return memory_.bytes() + to_host_.high_water + to_device_.high_water; }

void HostSide::cross(Side to, const std::vector<Crossing>& values) {
  Way& way = to == Side::kHost ? to_host_ : to_device_;
  size_t bytes = 0;
  for (const Crossing& value : values) bytes += aligned(value.to.bytes(), Arena::kAlignment);
  if (context_.dry()) {
    way.high_water = std::max(way.high_water, bytes);
    return;
  }
  HONE_ASSERT(bytes <= way.memory.size(), "more crosses than in the dry pass");
  const auto each = [&](const auto& copy) {
    size_t offset = 0;
    for (const Crossing& value : values) {
      HONE_ASSERT(value.to.bytes() == value.from.bytes());
      const auto size = static_cast<int64_t>(value.from.bytes());
      if (size > 0) copy(value, way.memory.tensor({size}, DType::kU8, offset));
      offset += aligned(value.to.bytes(), Arena::kAlignment);
    }
  };
  const Side from = other_side(to);
  const auto copy = [&](Side on, Tensor destination, Tensor source) {
    on == Side::kHost ? copy_on_host(destination, source) : link_->copy(destination, source);
  };
  link_->await(to, way.left);  // the memory is free
  each([&](const Crossing& value, Tensor between) { copy(from, between, value.from); });
  const int64_t arrived = link_->mark(from);
  link_->await(from, arrived);
  each([&](const Crossing& value, Tensor between) { copy(to, value.to, between); });
  way.left = link_->mark(to);
  crossed_ = true;
  limit_ahead(to == Side::kHost ? way.left : arrived);
}

void HostSide::enter_block() {
  if (context_.dry() || std::exchange(crossed_, false)) return;
  link_->await(Side::kDevice, link_->mark(Side::kDevice));
  limit_ahead(link_->mark(Side::kHost));
}

void HostSide::limit_ahead(int64_t mark) {
  ahead_.push_back(mark);
  if (ahead_.size() <= kAhead) return;
  link_->finish_on_host(ahead_.front());
  ahead_.pop_front();
}

void HostSide::copy_on_host(Tensor to, Tensor from) {
  stream_.enqueue([to, from](ThreadPool& pool) {
    constexpr int64_t kGrain = int64_t{1} << 18;
    pool.parallel_ranges(static_cast<int64_t>(from.bytes()), kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data + begin, from.data + begin, static_cast<size_t>(end - begin));
    });
  });
}

void HostSide::synchronize() {
  std::exception_ptr cause, consequence;
  // The wait for the host's stream sleeps, that for a GPU's takes a core.
  for (Stream* stream : {&stream_, &device_}) {
    if (is_planned(stream->device())) continue;
    try {
      stream->synchronize();
    } catch (const OtherStreamFailed&) {
      consequence = std::current_exception();
    } catch (...) {
      if (!cause) cause = std::current_exception();
    }
  }
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace hone
