// File descriptors of ranks on one host, which processes pass each other over Unix sockets.
#pragma once

#include <string>
#include <vector>

#include "core/mapped_memory.h"
#include "dist/control.h"

namespace hone {

/// Collective: returns every rank's descriptor, by rank; this rank's is its own again. Only processes of this user get
/// it. Returns nothing on any rank, with a reason, if one cannot reach another: ranks are on several hosts, or in
/// several network namespaces.
std::vector<Descriptor> exchange_descriptors(Control& control, const Descriptor& mine, std::string& why_not);

}  // namespace hone
