#include "dist/exchange/peer_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <sstream>

#include "core/base/error.h"
#include "dist/control/descriptor_exchange.h"

namespace hone {

namespace {

const std::string kCannotMap = "a rank cannot map another's memory: ";

std::vector<size_t> numbers(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<size_t>(words), std::istream_iterator<size_t>()};
}

}  // namespace

std::vector<MappableMemory> exchange_memory(Control& control, RankRange group, Device device, const MappableMemory& own,
                                            std::string& why_not) {
  const std::vector<std::string> pieces = control.exchange(fmt::format("{}", fmt::join(own.pieces(), " ")));
  std::vector<std::vector<size_t>> sizes;
  std::vector<MappableMemory> imported;
  for (int place = 0; place < group.count; ++place) {
    sizes.push_back(numbers(pieces[static_cast<size_t>(group.first + place)]));
    imported.emplace_back(device);
  }
  std::string problem;
  const auto take = [&](int place, const Descriptor& shared) {
    MappableMemory& theirs = imported[static_cast<size_t>(place)];
    if (problem.empty()) problem = theirs.import(shared, sizes[static_cast<size_t>(place)][theirs.pieces().size()]);
  };
  why_not = exchange_descriptors(control, group, own.share(), take);
  if (const std::string any = control.first_stated(problem); !any.empty()) why_not = kCannotMap + any;
  if (!why_not.empty()) imported.clear();
  return imported;
}

std::unique_ptr<PeerMemory> PeerMemory::connect(Control& control, RankRange group, Stream& stream,
                                                const MappableMemory& own, const std::vector<size_t>& offsets,
                                                std::string& why_not) {
  stream.synchronize();
  const std::vector<std::string> positions = control.exchange(fmt::format("{}", fmt::join(offsets, " ")));
  const std::vector<MappableMemory> imported = exchange_memory(control, group, stream.device(), own, why_not);
  auto memory = std::make_unique<PeerMemory>(stream.device());
  std::string problem;
  for (size_t place = 0; place < imported.size() && problem.empty(); ++place) {
    memory->offsets_.push_back(numbers(positions[static_cast<size_t>(group.first) + place]));
    HONE_ASSERT(memory->offsets_.back().size() == offsets.size());
    problem = memory->ranges_.emplace_back(stream.device(), imported[place].size())
                  .map(0, imported[place], 0, imported[place].size());
  }
  if (const std::string any = control.first_stated(problem); !any.empty()) why_not = kCannotMap + any;
  return why_not.empty() ? std::move(memory) : nullptr;
}

}  // namespace hone
