#include "optim/state_stream.h"

#include <algorithm>

#include "core/stream/profiler.h"
#include "ops/adamw/dynamic_code.h"

namespace hone {

namespace {

int64_t parts(int64_t elements, int64_t together) { return (elements + together - 1) / together; }

int64_t aligned(size_t bytes) {
  return static_cast<int64_t>((bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment);
}

}  // namespace

StateStream::StateStream(Device device, int64_t piece, bool everything)
    : device_(device), piece_(piece), everything_(everything) {
  HONE_ASSERT(piece % kMomentBlock == 0);
}

bool StateStream::has_host_field(const std::vector<Field>& fields) const {
  return std::any_of(fields.begin(), fields.end(), [this](const Field& f) { return in_host(*f.tensor); });
}

int64_t StateStream::piece_bytes(const std::vector<Field>& fields) const {
  const int64_t count = std::min(piece_, fields.front().tensor->numel());
  int64_t bytes = 0;
  for (const Field& field : fields) {
    if (!in_host(*field.tensor)) continue;
    bytes += aligned(static_cast<size_t>(parts(count, field.together)) * size_of(field.tensor->dtype));
  }
  return bytes;
}

void StateStream::begin(const Context& context, ArenaScope& scratch, int64_t bytes) {
  for (Slot& slot : slots_) slot = {scratch.take({bytes}, DType::kU8), 0};
  next_ = 0;
  if (context.dry()) return;
  if (!lanes_) lanes_.emplace(device_);
  lanes_->in.fork(context.stream());  // other ops have used the memory
}

void StateStream::bring(const Context& context, const std::vector<Field>& fields, int64_t first, int64_t count) {
  Slot& slot = slots_[next_ % slots_.size()];
  Stream& stream = context.stream();
  if (!context.dry()) lanes_->in.follow(lanes_->out, slot.left);
  written_.clear();
  size_t offset = 0;
  for (const Field& field : fields) {
    Tensor& tensor = *field.tensor;
    if (!tensor.defined()) continue;
    const int64_t begin = first / field.together, size = parts(count, field.together);
    tensor.data += static_cast<size_t>(begin) * size_of(tensor.dtype);
    tensor.shape = {size};
    if (!in_host(tensor)) continue;
    const Tensor here{slot.memory.data + offset, tensor.dtype, tensor.shape, device_};
    offset += static_cast<size_t>(aligned(here.bytes()));
    if (field.read && !context.dry()) lanes_->in.copy(stream, here, tensor);
    if (field.written) written_.emplace_back(tensor, here);
    tensor = here;
  }
  if (!context.dry()) lanes_->in.join(stream, lanes_->in.calls());
}

void StateStream::send_back(const Context& context) {
  if (context.dry()) return;
  lanes_->out.fork(context.stream());
  for (const auto& [host, here] : written_) lanes_->out.copy(context.stream(), host, here);
  slots_[next_++ % slots_.size()].left = lanes_->out.calls();
}

void StateStream::finish(const Context& context) {
  if (!context.dry()) lanes_->out.join(context.stream(), lanes_->out.calls());
}

}  // namespace hone
