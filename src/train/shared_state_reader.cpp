#include "train/shared_state_reader.h"

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "ops/cast/cast.h"

namespace hone {

namespace {

/// Elements of a piece: a tensor of gigabytes takes a few hundred pieces.
constexpr int64_t kPiece = int64_t{1} << 22;

}  // namespace

SharedStateReader::SharedStateReader(Communicator& communicator, Stream& stream, ParameterStore& store)
    : communicator_(communicator),
      stream_(stream),
      store_(store),
      scratch_(stream.device(), "gathering state"),
      staging_(stream.device(), static_cast<size_t>(kPiece) * sizeof(float)) {
  scratch_.reserve(0);
}

const Parameter& SharedStateReader::at(uint32_t index) const {
  HONE_ASSERT(index >= 1 && index <= store_.all().size());
  return store_.all()[index - 1];
}

void SharedStateReader::read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) {
  const StateTensor state = state_tensor(parameter, part);
  if (state.slice.count == state.shape.numel()) return own_.read(parameter, part, first, count, use);
  for (int64_t begin = first; begin < first + count; begin += kPiece) {
    const Request request{parameter.index(), part, begin, std::min(kPiece, first + count - begin)};
    std::ostringstream text;
    text << request.parameter << ' ' << static_cast<int>(request.part) << ' ' << request.first << ' ' << request.count;
    communicator_.control().broadcast(text.str(), 0);
    staged_.read(gather(request), 0, request.count, use);
  }
}

void SharedStateReader::finish() { communicator_.control().broadcast("", 0); }

void SharedStateReader::serve() {
  while (true) {
    const std::string text = communicator_.control().broadcast("", 0);
    if (text.empty()) return;
    std::istringstream fields(text);
    Request request;
    int part = 0;
    fields >> request.parameter >> part >> request.first >> request.count;
    HONE_ASSERT(!fields.fail(), text);
    request.part = static_cast<StatePart>(part);
    gather(request);
  }
}

Tensor SharedStateReader::gather(const Request& request) {
  const Parameter& parameter = at(request.parameter);
  const StateTensor state = state_tensor(parameter, request.part);
  const Tensor staged = staging_.tensor({request.count}, state.dtype);
  const Slice piece{request.first, request.count}, own = state.slice.intersect(piece);
  const auto elements = [](const Tensor& tensor, int64_t first, int64_t count) {
    return Tensor{
        tensor.data + static_cast<size_t>(first) * size_of(tensor.dtype), tensor.dtype, {count}, tensor.device};
  };
  if (own.count > 0) {
    copy(Context(stream_, scratch_), elements(state.here, own.begin - state.slice.begin, own.count),
         elements(staged, own.begin - piece.begin, own.count));
  }
  std::vector<Part> parts;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const Slice theirs = state_slice(parameter, request.part, rank).intersect(piece);
    parts.push_back({theirs.count > 0 ? theirs.begin - piece.begin : 0, theirs.count});
  }
  communicator_.fork(stream_);
  communicator_.all_gather(stream_, staged, parts);
  communicator_.join(stream_);
  stream_.synchronize();
  return staged;
}

}  // namespace hone
