// File descriptors of ranks on one host, which processes pass each other over Unix sockets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/memory/mapped_memory.h"
#include "dist/control/control.h"

namespace hone {

/// Consecutive ranks of a run.
struct RankRange {
  int first = 0, count = 0;
};

/// Collective of all ranks: gives every rank the descriptors of its group, its own among them, by take(place,
/// descriptor) in the order in which that rank has them; a place counts from the group's first rank. Only processes of
/// this user get them. Returns "", or on all ranks the reason if one cannot reach another of its group: they are on
/// several hosts, or in several network namespaces.
std::string exchange_descriptors(Control& control, RankRange group, const std::vector<Descriptor>& mine,
                                 const std::function<void(int place, const Descriptor&)>& take);

}  // namespace hone
