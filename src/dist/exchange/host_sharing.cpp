#include "dist/exchange/host_sharing.h"

#include <string>
#include <vector>

#include "core/base/error.h"
#include "dist/exchange/peer_memory.h"

namespace hone {

void share_values(Control& control, ParameterStore& store) {
  SharedValues* const values = store.shared_values();
  if (values == nullptr) return;
  if (values->complete()) return control.barrier();
  const RankRange host{control.rank() - values->place(), values->ranks()};
  std::string why_not;
  const std::vector<MappableMemory> parts = exchange_memory(control, host, Device{}, values->own(), why_not);
  std::string problem;
  for (int place = 0; place < static_cast<int>(parts.size()) && problem.empty(); ++place) {
    if (place != values->place()) problem = values->map(place, parts[static_cast<size_t>(place)]);
  }
  problem = control.first_stated(problem);
  if (why_not.empty() && problem.empty()) return;
  throw UserError(
      "the ranks of a host cannot share the memory of the experts: " + (why_not.empty() ? problem : why_not),
      "experts_device",
      "start the ranks of a host as one user in one container, one after another in the order of ranks; or "
      "one rank per host; or leave experts_device out");
}

}  // namespace hone
