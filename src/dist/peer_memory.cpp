#include "dist/peer_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <sstream>

#include "core/error.h"
#include "dist/descriptor_exchange.h"

namespace hone {

namespace {

std::vector<size_t> numbers(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<size_t>(words), std::istream_iterator<size_t>()};
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::connect(Control& control, Stream& stream, const MappableMemory& own,
                                                const std::vector<size_t>& offsets, std::string& why_not) {
  stream.synchronize();
  const std::vector<std::string> places = control.exchange(fmt::format("{}", fmt::join(offsets, " ")));
  const std::vector<std::string> pieces = control.exchange(fmt::format("{}", fmt::join(own.pieces(), " ")));
  std::vector<std::vector<size_t>> sizes;
  std::vector<MappableMemory> imported;
  auto memory = std::make_unique<PeerMemory>(stream.device());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    memory->offsets_.push_back(numbers(places[rank]));
    sizes.push_back(numbers(pieces[rank]));
    imported.emplace_back(stream.device());
    HONE_ASSERT(memory->offsets_.back().size() == offsets.size());
  }
  std::string problem;
  const auto take = [&](int rank, const Descriptor& shared) {
    MappableMemory& theirs = imported[static_cast<size_t>(rank)];
    if (problem.empty()) problem = theirs.import(shared, sizes[static_cast<size_t>(rank)][theirs.pieces().size()]);
  };
  why_not = exchange_descriptors(control, own.share(), take);
  for (size_t rank = 0; rank < places.size() && why_not.empty() && problem.empty(); ++rank) {
    problem = memory->ranges_.emplace_back(stream.device(), imported[rank].size())
                  .map(0, imported[rank], 0, imported[rank].size());
  }
  if (const std::string any = control.first_stated(problem); !any.empty()) {
    why_not = "a rank cannot map another's memory: " + any;
  }
  return why_not.empty() ? std::move(memory) : nullptr;
}

}  // namespace hone
