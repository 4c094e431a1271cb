#include "dist/peer_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "core/error.h"
#include "dist/descriptor_exchange.h"

namespace hone {

std::unique_ptr<PeerMemory> PeerMemory::connect(Control& control, Stream& stream, const MappableMemory& own,
                                                const std::vector<size_t>& offsets, std::string& why_not) {
  stream.synchronize();
  const std::vector<std::string> places = control.exchange(fmt::format("{} {}", own.size(), fmt::join(offsets, " ")));
  const std::vector<Descriptor> shared = exchange_descriptors(control, own.share(), why_not);
  if (shared.empty()) return nullptr;
  auto memory = std::make_unique<PeerMemory>();
  std::string problem;
  for (size_t rank = 0; rank < places.size() && problem.empty(); ++rank) {
    std::istringstream text(places[rank]);
    size_t bytes = 0, offset = 0;
    text >> bytes;
    std::vector<size_t>& list = memory->offsets_.emplace_back();
    while (text >> offset) list.push_back(offset);
    HONE_ASSERT(list.size() == offsets.size());
    const auto imported = MappableMemory::import(stream.device(), shared[rank], bytes, problem);
    if (!imported) break;
    problem = memory->ranges_.emplace_back(stream.device(), bytes).map(0, *imported, 0, bytes);
  }
  for (const std::string& text : control.exchange(problem)) {
    if (!text.empty()) why_not = "a rank cannot map another's memory: " + text;
  }
  return why_not.empty() ? std::move(memory) : nullptr;
}

}  // namespace hone
