#include "tape/kept_memory.h"

#include <algorithm>

#include "core/stream/profiler.h"

namespace hone {

KeptMemory::KeptMemory(Device device)
    : device_(device), slots_{Arena(device, "kept"), Arena(device, "kept 1"), Arena(device, "kept 2")} {}

void KeptMemory::begin_dry() {
  for (Arena& slot : slots_) slot.begin_dry();
  host_.reset();
  host_top_ = host_high_water_ = 0;
}

void KeptMemory::reserve() {
  for (Arena& slot : slots_) slot.reserve(slot.high_water());
  if (!offloads_) return;
  host_ = HostBuffer(device_, host_high_water_);
  lanes_.emplace(device_);
  left_ = {};
}

size_t KeptMemory::bytes() const {
  size_t total = 0;
  for (const Arena& slot : slots_) total += slot.dry() ? slot.high_water() : slot.capacity();
  return total;
}

void KeptMemory::begin_pass() {
  values_.clear();
  for (Arena& slot : slots_) slot.release(0);
  host_top_ = 0;
}

void KeptMemory::begin_forward(const Context& context, int32_t block) {
  HONE_ASSERT(static_cast<size_t>(block) == values_.size());
  block_ = block;
  if (offloads_) {
    if (block >= kSlots) values_[static_cast<size_t>(block - kSlots)].present = false;
    if (!context.dry()) lanes_->out.join(context.stream(), left_[slot_index(block)]);
    slot(block).release(0);
  }
  values_.emplace_back().mark = slot(block).mark();
}

void KeptMemory::end_forward(const Context& context) {
  if (!offloads_) return;
  Values& values = values_.back();
  values.device = slot(block_).taken_since(0);
  const size_t bytes = values.device.bytes(), offset = host_top_;
  host_top_ += bytes;
  host_high_water_ = std::max(host_high_water_, host_top_);
  if (context.dry()) return;
  values.host = host_.tensor(values.device.shape, DType::kU8, offset);
  Stream& stream = context.stream();
  lanes_->out.fork(stream);
  const ProfileScope scope(stream, lanes_->out.cuda_stream(), OpGroup::kMemoryBound, "to host", "activations",
                           static_cast<double>(bytes));
  lanes_->out.copy(stream, values.host, values.device);
  left_[slot_index(block_)] = lanes_->out.calls();
}

void KeptMemory::begin_backward(const Context& context, int32_t block) {
  if (!offloads_) return;
  for (int32_t wanted = block; wanted >= std::max(block - kSlots + 1, 0); --wanted) bring(context, wanted);
  if (context.dry()) return;
  for (int32_t used = block; used >= std::max(block - 1, 0); --used) {
    lanes_->in.join(context.stream(), values_[static_cast<size_t>(used)].arrival);
  }
}

void KeptMemory::bring(const Context& context, int32_t block) {
  Values& values = values_[static_cast<size_t>(block)];
  if (values.present) return;
  values.present = true;
  if (context.dry()) return;
  Stream& stream = context.stream();
  lanes_->in.fork(stream);
  lanes_->in.follow(lanes_->out);
  const ProfileScope scope(stream, lanes_->in.cuda_stream(), OpGroup::kMemoryBound, "from host", "activations",
                           static_cast<double>(values.device.bytes()));
  lanes_->in.copy(stream, values.device, values.host);
  values.arrival = lanes_->in.calls();
}

void KeptMemory::end_backward(int32_t block) {
  HONE_ASSERT(static_cast<size_t>(block) + 1 == values_.size());
  if (!offloads_) slot(block).release(values_.back().mark);
  values_.pop_back();
}

}  // namespace hone
