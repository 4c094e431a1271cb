#include "weights/tensor_pieces.h"

#include <algorithm>
#include <utility>

#include "ops/adamw/dynamic_code.h"

namespace hone {
namespace {

/// Large enough for full PCIe bandwidth, small compared to host memory.
constexpr size_t kReadBytes = size_t{16} << 20;

std::byte* address_of(const Tensor& tensor, int64_t element) {
  return tensor.data + static_cast<size_t>(element) * size_of(tensor.dtype);
}

}  // namespace

std::byte* PieceWriter::open(const Tensor& tensor, int64_t first, int64_t count) {
  HONE_ASSERT(first >= 0 && first + count <= tensor.numel());
  if (tensor.device.kind == DeviceKind::kCpu) return address_of(tensor, first);
  if (chunks_.empty()) device_ = tensor.device;
  HONE_ASSERT(tensor.device == device_);
  const size_t bytes = static_cast<size_t>(count) * size_of(tensor.dtype);
  HONE_ASSERT(bytes <= largest_);
  commit();
  if (chunks_.empty()) {
    for (int i = 0; i < 2; ++i) chunks_.emplace_back(device_.index, largest_);
  }
  current_ = 1 - current_;
  chunks_[current_].wait();
  destination_ = address_of(tensor, first);
  bytes_ = bytes;
  return chunks_[current_].data();
}

void PieceWriter::commit() {
  if (destination_ != nullptr) chunks_[current_].start_upload(std::exchange(destination_, nullptr), bytes_);
}

void PieceWriter::finish() {
  commit();
  for (PinnedChunk& chunk : chunks_) chunk.wait();
}

void PieceReader::read(const Tensor& tensor, int64_t first, int64_t count, const Use& use) {
  HONE_ASSERT(first >= 0 && first + count <= tensor.numel());
  if (count == 0) return;
  if (tensor.device.kind == DeviceKind::kCpu) return use(address_of(tensor, first), count);
  if (chunks_.empty()) {
    for (int i = 0; i < 2; ++i) chunks_.emplace_back(tensor.device.index, kReadBytes);
  }
  const auto element = size_of(tensor.dtype);
  const auto piece = static_cast<int64_t>(kReadBytes / element);
  const auto start = [&](int64_t begin) {
    const auto bytes = static_cast<size_t>(std::min(piece, count - begin)) * element;
    chunks_[static_cast<size_t>(begin / piece % 2)].start_download(address_of(tensor, first + begin), bytes);
  };
  start(0);
  for (int64_t begin = 0; begin < count; begin += piece) {
    PinnedChunk& chunk = chunks_[static_cast<size_t>(begin / piece % 2)];
    chunk.wait();
    if (begin + piece < count) start(begin + piece);
    use(chunk.data(), std::min(piece, count - begin));
  }
}

namespace {

int64_t blocks_of(int64_t elements) { return (elements + kMomentBlock - 1) / kMomentBlock; }

bool is_scales(StatePart part) { return part == StatePart::kMScales || part == StatePart::kVScales; }

/// State that is not sharded: the tensor itself.
StateTensor whole(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.shape = tensor.shape, .dtype = tensor.dtype, .here = tensor, .slice = {0, tensor.numel()}};
}

const Tensor& tensor_of(const Parameter& parameter, StatePart part) {
  switch (part) {
    case StatePart::kValue:
      return stepped_value(parameter);
    case StatePart::kM:
      return parameter.state().moment1.values;
    case StatePart::kMScales:
      return parameter.state().moment1.scales;
    case StatePart::kV:
      return parameter.state().moment2.values;
    case StatePart::kVScales:
      return parameter.state().moment2.scales;
    case StatePart::kVRows:
      return parameter.state().row_moments;
    case StatePart::kVColumns:
      return parameter.state().column_moments;
  }
  HONE_ASSERT(false, "part out of range");
}

/// The dtype of a sharded tensor, which ranks without elements do not have; none if it is not kept.
std::optional<DType> sharded_dtype(const Parameter& parameter, StatePart part) {
  const TrainingFormats formats = parameter.state().formats;
  const auto when = [](bool kept, DType dtype) { return kept ? std::optional(dtype) : std::nullopt; };
  const bool has_v = formats.second_moment == SecondMoment::kWhole;
  switch (part) {
    case StatePart::kValue:
      return keeps_master(parameter) ? DType::kF32 : parameter.value().dtype();
    case StatePart::kM:
      return when(formats.has_m, formats.m);
    case StatePart::kMScales:
      return when(formats.has_m && size_of(formats.m) == 1, DType::kF32);
    case StatePart::kV:
      return when(has_v, formats.v);
    case StatePart::kVScales:
      return when(has_v && size_of(formats.v) == 1, DType::kF32);
    default:
      return std::nullopt;
  }
}

}  // namespace

/// Values are replicated unless they are sharded or spread themselves, or have sharded masters.
bool is_sharded(const Parameter& parameter, StatePart part) {
  if (parameter.share().spread()) return true;
  return parameter.share().sharded() &&
         (part != StatePart::kValue || keeps_master(parameter) || parameter.value().home().sharded);
}

StateTensor state_tensor(const Parameter& parameter, StatePart part) {
  StateTensor state;
  if (!is_sharded(parameter, part)) {
    state = whole(tensor_of(parameter, part));
    state.exact = part == StatePart::kValue && parameter.state().has_master();
    return state;
  }
  const std::optional<DType> dtype = sharded_dtype(parameter, part);
  if (!dtype) return {};
  state.shape = is_scales(part) ? Shape{blocks_of(parameter.shape().numel())} : parameter.shape();
  state.dtype = *dtype;
  state.slice = is_scales(part)
                    ? Slice{parameter.share().own().begin / kMomentBlock, blocks_of(parameter.share().own().count)}
                    : parameter.share().own();
  if (state.slice.count > 0) state.here = tensor_of(parameter, part);
  state.exact = part == StatePart::kValue && keeps_master(parameter);
  return state;
}

Slice state_slice(const Parameter& parameter, StatePart part, int rank) {
  if (!is_sharded(parameter, part)) return state_tensor(parameter, part).slice;
  const Slice slice = parameter.share().slice_of(rank);
  return is_scales(part) ? Slice{slice.begin / kMomentBlock, blocks_of(slice.count)} : slice;
}

}  // namespace hone
