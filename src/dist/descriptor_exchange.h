// File descriptors of ranks on one host, which processes pass each other over Unix sockets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/mapped_memory.h"
#include "dist/control.h"

namespace hone {

/// Collective: gives every rank the descriptors of all, its own among them, by take(rank, descriptor) in the order in
/// which that rank has them. Only processes of this user get them. Returns "", or on all ranks the reason if one cannot
/// reach another: ranks are on several hosts, or in several network namespaces.
std::string exchange_descriptors(Control& control, const std::vector<Descriptor>& mine,
                                 const std::function<void(int rank, const Descriptor&)>& take);

}  // namespace hone
