#include "train/plan/rank_writers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/memory/buffer.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "ops/cast/cast.h"

namespace hone {

namespace {

/// Elements of a piece that travels, at most 16 MiB.
constexpr int64_t kPiece = int64_t{1} << 22;
/// After so many bytes of a rank the ranks meet, so that none waits longer for another than a part of a save takes: a
/// wait of ddp_timeout ends the run.
constexpr int64_t kRound = int64_t{8} << 30;

/// State in host memory.
class GatheredState : public StateReader {
 public:
  explicit GatheredState(const std::vector<StateRange>& ranges) {
    for (const StateRange& range : ranges) {
      const size_t element = size_of(state_tensor(*range.parameter, range.part).dtype);
      ranges_.push_back({range, element, std::vector<std::byte>(static_cast<size_t>(range.elements.count) * element)});
    }
  }

  std::byte* at(size_t range, size_t element) { return ranges_[range].bytes.data() + element * ranges_[range].element; }

  void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) override {
    for (const Held& held : ranges_) {
      const Slice& elements = held.range.elements;
      const bool here = held.range.parameter == &parameter && held.range.part == part && first >= elements.begin &&
                        first + count <= elements.end();
      if (here) return use(held.bytes.data() + static_cast<size_t>(first - elements.begin) * held.element, count);
    }
    HONE_ASSERT(false, "state that was not announced: " + parameter.name());
  }

 private:
  struct Held {
    StateRange range;
    size_t element;  ///< bytes
    std::vector<std::byte> bytes;
  };
  std::vector<Held> ranges_;
};

}  // namespace

RankWriters::RankWriters(Communicator& communicator, int holders, Stream& stream, ThreadPool& pool,
                         std::span<const TensorFile> files)
    : communicator_(communicator),
      holders_(holders),
      stream_(stream),
      pool_(pool),
      files_(files),
      scratch_(stream.device(), "staging state") {
  scratch_.reserve(0);
}

void RankWriters::write(const std::filesystem::path& folder, FileChecksums& checksums) {
  Control& control = communicator_.control();
  PartWriter writer(folder, files_);
  writer.create_files();
  control.broadcast(folder.string(), 0);
  write_parts(writer);
  for (const std::string& written : control.exchange("{}")) writer.ledger().merge(parse_json(written));
  for (const auto& [name, checksum] : writer.checksums()) checksums[name] = checksum;
}

void RankWriters::serve() {
  Control& control = communicator_.control();
  PartWriter writer(control.broadcast("", 0), files_);
  try {
    write_parts(writer);
  } catch (const UserError&) {
    // When a rank is lost, the first rank removes its files, perhaps before this rank hears of the loss: then the loss
    // is the reason, not a file that is missing.
    await_loss(control);
    throw;
  }
  control.exchange(writer.ledger().pieces().dump());
}

void RankWriters::write_parts(PartWriter& writer) {
  std::vector<FilePart> travelling, held;
  for (const FilePart& part : deal(files_, holders_)) (part.travels ? travelling : held).push_back(part);
  write_travelling(writer, travelling);
  write_held(writer, held);
  writer.sync();
}

void RankWriters::write_held(PartWriter& writer, std::span<const FilePart> parts) {
  std::vector<std::vector<FilePart>> rounds;  // this rank's parts
  std::vector<int64_t> bytes(static_cast<size_t>(holders_));
  for (const FilePart& part : parts) {
    int64_t& before = bytes[static_cast<size_t>(part.writer)];
    const auto round = static_cast<size_t>(before / kRound);
    before +=
        part.elements.count * static_cast<int64_t>(size_of(files_[part.file].tensors[part.tensor].announced.dtype));
    if (round >= rounds.size()) rounds.resize(round + 1);
    if (part.writer == communicator_.rank()) rounds[round].push_back(part);
  }
  Control& control = communicator_.control();
  for (size_t round = 0; round < rounds.size(); ++round) {
    if (round > 0) control.barrier();
    for_each_part(rounds[round], &pool_, [&](const FilePart& part, StateReader& reader) {
      control.check();
      writer.write(part, reader);
    });
  }
}

const TensorSource& RankWriters::source_of(const FilePart& part) const {
  return *files_[part.file].tensors[part.tensor].source;
}

std::vector<RankWriters::Piece> RankWriters::pieces_of(std::span<const FilePart> parts) const {
  std::vector<Piece> pieces;
  for (const FilePart& part : parts) {
    const size_t first = pieces.size();
    const std::vector<StateRange> state = source_of(part).state_of(part.elements);
    for (size_t range = 0; range < state.size(); ++range) {
      const Slice& all = state[range].elements;
      for (int64_t at = 0; at < all.count; at += kPiece) {
        StateRange some = state[range];
        some.elements = {all.begin + at, std::min(kPiece, all.count - at)};
        pieces.push_back({&part, some, range, static_cast<size_t>(at), false, false});
      }
    }
    pieces[first].first = pieces.back().last = true;
  }
  return pieces;
}

int64_t RankWriters::start(const Piece& piece, const Tensor& staged) {
  const Parameter& parameter = *piece.state.parameter;
  const StatePart part = piece.state.part;
  const Slice& wanted = piece.state.elements;
  const StateTensor state = state_tensor(parameter, part);
  const int own = communicator_.rank(), to = piece.part->writer;
  const auto place_of = [&](const Slice& slice) {
    return elements_of(staged, {slice.begin - wanted.begin, slice.count});
  };
  const bool sharded = is_sharded(parameter, part);
  const Slice mine = (own < holders_ ? state_slice(parameter, part, own) : Slice{}).intersect(wanted);
  std::vector<Transfer> sends, receives;
  if (mine.count > 0 && (own == to || sharded)) {
    const Tensor here = elements_of(state.here, {mine.begin - state.slice.begin, mine.count});
    // What is in host memory passes through the device, from which NCCL sends.
    const bool staging = own == to || here.device != stream_.device();
    if (staging) {
      copy(Context(stream_, scratch_), here, place_of(mine));
    }
    if (own != to) sends.push_back({to, staging ? place_of(mine) : here});
  }
  for (int rank = 0; rank < holders_ && own == to && sharded; ++rank) {
    const Slice theirs = state_slice(parameter, part, rank).intersect(wanted);
    if (rank != own && theirs.count > 0) receives.push_back({rank, place_of(theirs)});
  }
  communicator_.fork(stream_);
  communicator_.send_receive(stream_, sends, receives);
  return communicator_.calls();
}

void RankWriters::write_travelling(PartWriter& writer, std::span<const FilePart> parts) {
  if (parts.empty()) return;
  const std::vector<Piece> pieces = pieces_of(parts);
  std::array<Buffer, 2> slots;
  for (Buffer& slot : slots) slot = Buffer(stream_.device(), static_cast<size_t>(kPiece) * sizeof(float));
  const auto staged = [&](size_t i) {
    const StateRange& state = pieces[i].state;
    return slots[i % 2].tensor({state.elements.count}, state_tensor(*state.parameter, state.part).dtype);
  };
  std::optional<GatheredState> gathered;
  PieceReader reader;
  int64_t calls = start(pieces[0], staged(0));
  for (size_t i = 0; i < pieces.size(); ++i) {
    communicator_.finish(stream_, calls);
    stream_.synchronize();
    if (i + 1 < pieces.size()) calls = start(pieces[i + 1], staged(i + 1));
    const Piece& piece = pieces[i];
    if (piece.part->writer != communicator_.rank()) continue;
    if (piece.first) gathered.emplace(source_of(*piece.part).state_of(piece.part->elements));
    size_t at = piece.at;
    const size_t element = size_of(staged(i).dtype);
    reader.read(staged(i), 0, piece.state.elements.count, [&](const std::byte* elements, int64_t count) {
      std::memcpy(gathered->at(piece.range, at), elements, static_cast<size_t>(count) * element);
      at += static_cast<size_t>(count);
    });
    if (piece.last) writer.write(*piece.part, *gathered);
  }
}

}  // namespace hone
